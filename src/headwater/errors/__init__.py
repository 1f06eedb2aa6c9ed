"""The error tree. Each error has an HTTP status, a title, advice, and says whether a retry can help.

The server sends these errors as problem documents, and the client raises the same classes. Most programs need five:
NetworkError, StreamNotFoundError, StreamClosedError, StaleEpochError, and HeadwaterError for the rest.

HeadwaterError
├── RequestError                         the request is invalid or was refused; it had no effect
│   ├── BadRequestError            400
│   │   ├── InvalidHeaderError     400
│   │   ├── InvalidQueryError      400
│   │   ├── InvalidPathError       400
│   │   ├── InvalidOffsetError     400
│   │   ├── InvalidJsonError       400
│   │   ├── InvalidChangeError     400
│   │   ├── InvalidComposeError    400
│   │   ├── InvalidNotifyError     400
│   │   ├── EmptyBodyError         400
│   │   ├── MissingContentTypeError 400
│   │   ├── InvalidForkError       400
│   │   ├── InvalidRetentionError  400
│   │   ├── InvalidSubscriptionError 400
│   │   ├── WebhookUrlRejectedError 400
│   │   └── NewEpochSequenceError  400
│   ├── UnauthorizedError          401
│   │   └── WakeTokenError         401
│   │       └── WakeTokenExpiredError 401
│   ├── ForbiddenError             403
│   ├── StaleEpochError            403
│   ├── OriginNotAllowedError      403
│   ├── TooManyStreamsError        403
│   ├── QuotaExceededError         403
│   ├── StreamNotFoundError        404
│   ├── ViewSourceNotFoundError    404
│   ├── ComposeSourceNotFoundError 404
│   ├── SubscriptionNotFoundError  404
│   ├── EntityNotFoundError        404
│   ├── UnknownRouteError          404
│   ├── MethodNotAllowedError      405
│   ├── NotAcceptableError         406
│   ├── RequestTimeoutError        408
│   ├── ConflictError              409
│   │   ├── ConfigurationError     409
│   │   ├── PathBlockedError       409
│   │   ├── ReadOnlyError          409
│   │   ├── SourceGoneError        409
│   │   ├── ContentTypeError       409
│   │   ├── StreamClosedError      409
│   │   ├── DocumentConflictError  409
│   │   ├── SequenceRegressionError 409
│   │   ├── SeqNoRegressionError   409
│   │   ├── MirrorMismatchError    409
│   │   ├── ViewTooLargeError      409
│   │   ├── NoStateError           409
│   │   ├── StateTooLargeError     409
│   │   ├── TooManyNurlsError      409
│   │   ├── TooManyViewsError      409
│   │   ├── TooManySubscriptionsError 409
│   │   ├── SubscriptionExistsError 409
│   │   ├── AlreadyClaimedError    409
│   │   ├── NoPendingWorkError     409
│   │   ├── FencedError            409
│   │   ├── InvalidAckError        409
│   │   └── SequenceGapError       409
│   ├── StreamGoneError            410
│   ├── ComposeSourceGoneError     410
│   ├── NotFollowedError           410
│   ├── OffsetGoneError            410
│   │   ├── OffsetLostError        410
│   │   └── OffsetTrimmedError     410
│   ├── TailMovedError             412
│   ├── BodyTooLargeError          413
│   │   └── TooManyMessagesError   413
│   ├── StreamFullError            413
│   ├── TooManyProducersError      413
│   ├── UrlTooLongError            414
│   ├── UnsupportedEncodingError   415
│   ├── UnsupportedMediaTypeError  415
│   ├── HostNotAllowedError        421
│   ├── TooManyRequestsError       429
│   └── HeadersTooLargeError       431
├── ServerError                          the server failed, or cannot take requests now
│   ├── InternalError              500
│   ├── UnknownOutcomeError        500   the change may be stored or not
│   │   └── OutcomePendingError    503
│   ├── DamagedDataError           500
│   ├── NotReadyError              503
│   ├── OverloadedError            503
│   │   └── OutOfMemoryError       503
│   ├── TransferEncodingError      501
│   ├── StoppingError              503
│   ├── LeaseLostError             503   the server may not take writes: another one holds its lease
│   ├── UnavailableError           503   the database cannot be reached; a write is not stored
│   └── StorageFullError           507
├── OutboundError                        a request from the server to a URL that a client gave failed
│   ├── TargetRefusedError         403   the server does not send requests to this URL; nothing was sent
│   ├── TargetUnreachableError           no connection, no response in time, or the connection was lost
│   └── TargetAnswerError                the target sent a response that the server does not accept
│       └── RedirectRefusedError         the target sent a redirect
└── ClientError                          raised by the client, not sent by the server
    ├── NetworkError                     the connection failed, timed out or was lost
    ├── ProtocolError                    the response does not follow the protocol
    │   ├── MissingExtensionError        the server lacks an extension of Headwater that a request needs
    │   ├── InvalidRowError              a line of a table's response is not a row
    │   ├── RowOrderError                rows of a table came out of order
    │   ├── MissingRowError              a table that promises gapless SeqNos lacks a row
    │   ├── HistoryChangedError          a table restarted its numbering, or has other rows than before
    │   │   └── RowsGoneError            a table has fewer rows than before
    │   ├── SchemaChangedError           a table has another schema or version than before
    │   └── RedirectError                a SURL was redirected
    ├── WebhookSignatureError            a webhook does not have a valid signature of the server
    │   └── UnknownSigningKeyError       the server does not publish the key that a webhook names
    ├── ProducerReusedError              the server took new messages for duplicates
    ├── MessageError                     a message cannot be decoded to the type that the reader asked for
    │   └── InvalidEventError            a message is not a state event, or its value does not match the schema
    ├── SchemaMismatchError              most of a stream does not match the schemas of a StreamDB
    ├── ForkedError                      a producer, a database or an httpx client of the parent process was used
    ├── OptionError                      an option of the server, a job, a source or a sink is missing or invalid
    ├── MissingExtraError                a package is not installed that a feature needs
    ├── SqlError                         a query cannot be run
    │   └── SqlDataError                 a message does not fit the type of its column, or an expression fails
    ├── SchemaError                      a DataFrame has other columns than the source or sink needs
    │   └── PartialWriteError            a target refused rows of a batch, and may have accepted others of it
    ├── UnsupportedTableError            a Delta table uses a feature of Delta that the jobs do not know
    ├── BatchReusedError                 a batch number or writeId was used before for other rows
    ├── IncompleteArchiveError           an archive lacks rows of a stream, or has two versions of them
    ├── CheckpointMismatchError          a checkpoint, a table and the tables beside it do not belong together
    ├── ReplayError                      the target of a replay has other content than the archive
    ├── SparkStartError                  Spark did not start, for example because its master does not run; retryable
    ├── JobConflictError                 another run of the same job is active, or committed first
    └── DataLossError                    data that a query still had to read or publish was deleted
"""

from __future__ import annotations

from headwater.errors.base import *
from headwater.errors.requests import *
from headwater.errors.server import *
from headwater.errors.client import *

for _kind in [kind for kind in vars().values() if isinstance(kind, type) and issubclass(kind, Exception)]:
    _kind.__module__ = __name__  # tracebacks and pickles name the public module
