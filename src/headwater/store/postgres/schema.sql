-- Format 4. Everything is in the schema `headwater`. Paths and keys are bytes (UTF-8), so that their order and their
-- content do not depend on the encoding and the collation of the database.

CREATE TABLE headwater.meta (
    format integer NOT NULL,
    timeline bigint NOT NULL,             -- the current timeline; 0 if the database was never replaced or restored
    identity text NOT NULL,               -- which cluster, timeline of PostgreSQL and database this was
    horizon xid8 NOT NULL,                -- rows of `moves` from before this transaction may be deleted
    copying bytea                         -- what this is an unfinished copy of; NULL: it is complete
);

CREATE SEQUENCE headwater.ids AS bigint;  -- of streams and timelines
CREATE SEQUENCE headwater.server_ids AS bigint;

-- A row for each server process. Each batch moves its row first, so that the outcome of a batch can be found out, and a
-- late one of a former connection is refused.
CREATE TABLE headwater.servers (
    id bigint PRIMARY KEY,
    epoch bigint NOT NULL,                -- grows with each connection that takes over
    batch bigint NOT NULL,                -- the last one that was stored
    outdated integer[],                   -- the groups of that batch that were not stored
    seen timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

CREATE TABLE headwater.streams (
    id bigint PRIMARY KEY,
    path bytea NOT NULL,
    version bigint NOT NULL,
    due_ms bigint,                        -- when it may expire or have something to trim
    changed xid8 NOT NULL,                -- the transaction that has written this row
    state bytea NOT NULL                  -- a checksum and the state without producers
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX streams_path ON headwater.streams (path);
CREATE INDEX streams_due ON headwater.streams (due_ms, id) WHERE due_ms IS NOT NULL;

-- A row for each slot of names: the largest id of the streams with such a path that were deleted. A stream that is created
-- has a larger one, so at each path ids rise.
CREATE TABLE headwater.slots (
    slot integer PRIMARY KEY,
    deleted_id bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE headwater.producers (
    stream_id bigint NOT NULL,
    producer bytea NOT NULL,
    epoch bigint NOT NULL,
    seq bigint NOT NULL,
    at_ms bigint NOT NULL,
    turn bigint NOT NULL,                 -- the version of the stream after its last request: the order of the producers
    hash bigint NOT NULL,                 -- what is kept when it has expired
    PRIMARY KEY (stream_id, producer)
) WITH (fillfactor = 70);

CREATE TABLE headwater.expired_producers (
    stream_id bigint NOT NULL,
    hash bigint NOT NULL,
    epoch bigint NOT NULL,
    PRIMARY KEY (stream_id, hash)
);

-- Records that are not packed yet: a row for each stream and batch.
CREATE TABLE headwater.fresh (
    stream_id bigint NOT NULL,
    start bigint NOT NULL,
    size bigint NOT NULL,
    last_ms bigint NOT NULL,              -- the time of the last record
    outline bytea NOT NULL,               -- checksums, and the ends and times of the records
    data bytea NOT NULL,
    PRIMARY KEY (stream_id, start)
);
ALTER TABLE headwater.fresh ALTER COLUMN data SET STORAGE EXTERNAL;

-- Packed records, with the same columns.
CREATE TABLE headwater.chunks (
    stream_id bigint NOT NULL,
    start bigint NOT NULL,
    size bigint NOT NULL,
    last_ms bigint NOT NULL,
    outline bytea NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (stream_id, start)
);
ALTER TABLE headwater.chunks ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX chunks_times ON headwater.chunks (stream_id, last_ms, start);

-- Ranges of bytes that nobody reads any more. They are removed in the background.
CREATE TABLE headwater.garbage (
    stream_id bigint NOT NULL,
    low bigint NOT NULL,
    high bigint NOT NULL,
    PRIMARY KEY (stream_id, low)
);

CREATE TABLE headwater.documents (
    key bytea PRIMARY KEY,
    version bigint NOT NULL,
    token bigint NOT NULL,                -- made from the version and the data: what commits compare, and a checksum
    data bytea NOT NULL
);

-- Which streams a batch has changed, for other servers. Rows are deleted after some minutes.
CREATE TABLE headwater.moves (
    xid xid8 NOT NULL,
    server bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    ids bigint[] NOT NULL,
    gone bigint[] NOT NULL,
    gone_paths bytea[] NOT NULL
);
CREATE INDEX moves_xid ON headwater.moves (xid);

CREATE TABLE headwater.leases (
    name text PRIMARY KEY,
    server bigint NOT NULL,
    token bigint NOT NULL,
    until timestamptz NOT NULL
);

-- Why a batch did not move the row of its server. Returns -1 in the place of a group if the batch before it was not stored, or
-- not completely.
CREATE FUNCTION headwater.not_moved(this_server bigint, this_epoch bigint, chained boolean)
RETURNS integer[] LANGUAGE plpgsql AS $$
BEGIN
    IF chained AND EXISTS (SELECT FROM headwater.servers WHERE id = this_server AND epoch = this_epoch) THEN
        RETURN ARRAY[-1];
    END IF;
    RAISE EXCEPTION 'the batch came too late: server % has another connection', this_server USING ERRCODE = 'HW001';
END
$$;

-- One batch. Every array of a kind has an element for each of its rows; `..._groups` says to which group of records it
-- belongs. Records of a group are stored together or not at all. Returns the groups that were decided on outdated
-- states; NULL if there are none.
--
-- `chained`: the batch was sent before the answer to the one before it. It was decided on the states after that one, and another
-- server's states may have the same versions, so nothing of it is stored unless that one was stored completely.
--
-- Locks are taken in one order everywhere: the row of the server, slots of names, streams by id. `patient`: wait for
-- locks. A transaction that has locks already does not wait, because it would take them in another order: what it cannot
-- lock at once counts as outdated.
--
-- Tables are joined by `id = ANY (ARRAY[...])`, for which PostgreSQL can do nothing but look up each id in the index. Plans are
-- kept: one that was made for a table of a few rows would read all of the table, and it is replaced only when the table,
-- which may have grown to millions of rows, is analyzed.
CREATE FUNCTION headwater.store_batch(
    this_server bigint, this_epoch bigint, this_batch bigint, chained boolean, patient boolean,
    slots integer[],
    ids bigint[], versions bigint[], id_groups integer[],
    paths bytea[], path_ids bigint[], path_groups integer[],
    keys bytea[], tokens bigint[], key_groups integer[],
    changed_ids bigint[], changed_versions bigint[], changed_dues bigint[], changed_states bytea[],
    changed_groups integer[],
    created_ids bigint[], created_paths bytea[], created_versions bigint[], created_dues bigint[],
    created_states bytea[], created_groups integer[],
    deleted_ids bigint[], deleted_paths bytea[], deleted_groups integer[],
    began_ids bigint[], began_slots integer[], began_groups integer[],
    ended_ids bigint[], ended_slots integer[], ended_groups integer[],
    fresh_ids bigint[], fresh_starts bigint[], fresh_sizes bigint[], fresh_times bigint[], fresh_outlines bytea[],
    fresh_data bytea[], fresh_groups integer[],
    producer_ids bigint[], producer_names bytea[], producer_epochs bigint[], producer_seqs bigint[],
    producer_times bigint[], producer_turns bigint[], producer_hashes bigint[], producer_groups integer[],
    written_keys bytea[], written_versions bigint[], written_tokens bigint[], written_data bytea[],
    written_groups integer[],
    removed_keys bytea[], removed_groups integer[],
    unread_ids bigint[], unread_lows bigint[], unread_highs bigint[], unread_groups integer[]
) RETURNS integer[] LANGUAGE plpgsql SET enable_hashjoin = on SET enable_mergejoin = on AS $$
DECLARE
    bad integer[] := '{}';
    more integer[];
    found_ids bigint[];
    found_versions bigint[];
BEGIN
    UPDATE headwater.servers SET batch = this_batch, outdated = NULL
    WHERE id = this_server AND epoch = this_epoch AND (NOT chained OR (batch = this_batch - 1 AND outdated IS NULL));
    IF NOT FOUND THEN
        RETURN headwater.not_moved(this_server, this_epoch, chained);
    END IF;

    IF cardinality(slots) > 0 THEN
        IF patient THEN
            PERFORM pg_advisory_xact_lock(1215459412, slot) FROM unnest(slots) AS slot;
        ELSIF NOT (SELECT bool_and(pg_try_advisory_xact_lock(1215459412, slot)) FROM unnest(slots) AS slot) THEN
            bad := path_groups || key_groups;
        END IF;
    END IF;

    IF cardinality(ids) > 0 THEN
        IF patient THEN
            SELECT array_agg(one.id), array_agg(one.version) INTO found_ids, found_versions
            FROM (SELECT s.id, s.version FROM headwater.streams s WHERE s.id = ANY (ids) ORDER BY s.id
                  FOR NO KEY UPDATE) AS one;
        ELSE
            SELECT array_agg(one.id), array_agg(one.version) INTO found_ids, found_versions
            FROM (SELECT s.id, s.version FROM headwater.streams s WHERE s.id = ANY (ids) ORDER BY s.id
                  FOR NO KEY UPDATE SKIP LOCKED) AS one;
        END IF;
        IF found_versions IS DISTINCT FROM versions THEN
            SELECT array_agg(DISTINCT e.grp) INTO more
            FROM unnest(ids, versions, id_groups) AS e(id, version, grp)
            LEFT JOIN unnest(found_ids, found_versions) AS f(id, version) ON f.id = e.id
            WHERE coalesce(f.version, 0) <> e.version;
            bad := bad || coalesce(more, '{}');
        END IF;
    END IF;
    IF cardinality(paths) > 0 THEN
        SELECT array_agg(DISTINCT e.grp) INTO more
        FROM unnest(paths, path_ids, path_groups) AS e(path, id, grp)
        LEFT JOIN headwater.streams s ON s.path = ANY (ARRAY[e.path])
        WHERE coalesce(s.id, 0) <> e.id;
        bad := bad || coalesce(more, '{}');
    END IF;
    IF cardinality(keys) > 0 THEN
        SELECT array_agg(DISTINCT e.grp) INTO more
        FROM unnest(keys, tokens, key_groups) AS e(key, token, grp)
        LEFT JOIN headwater.documents d ON d.key = ANY (ARRAY[e.key])
        WHERE coalesce(d.token, 0) <> e.token;
        bad := bad || coalesce(more, '{}');
    END IF;

    -- Also streams that end in the batch in which they began, and are not in the other arrays.
    IF cardinality(began_ids) > 0 THEN
        SELECT array_agg(DISTINCT b.grp) INTO more
        FROM unnest(began_ids, began_slots, began_groups) AS b(id, slot, grp)
        JOIN headwater.slots s ON s.slot = b.slot
        WHERE b.id < s.deleted_id;
        bad := bad || coalesce(more, '{}');
    END IF;
    IF cardinality(ended_ids) > 0 THEN
        INSERT INTO headwater.slots
        SELECT e.slot, max(e.id) FROM unnest(ended_ids, ended_slots, ended_groups) AS e(id, slot, grp)
        WHERE e.grp <> ALL (bad) GROUP BY e.slot
        ON CONFLICT (slot) DO UPDATE SET deleted_id = greatest(headwater.slots.deleted_id, excluded.deleted_id);
    END IF;

    IF cardinality(deleted_ids) > 0 THEN
        WITH gone AS (
            DELETE FROM headwater.streams s USING unnest(deleted_ids, deleted_groups) AS d(id, grp)
            WHERE s.id = ANY (ARRAY[d.id]) AND d.grp <> ALL (bad) RETURNING s.id
        )
        INSERT INTO headwater.garbage SELECT gone.id, -1, 9223372036854775807 FROM gone;
    END IF;
    IF cardinality(changed_ids) > 0 THEN
        UPDATE headwater.streams s
        SET version = c.version, due_ms = nullif(c.due, -1), state = c.state, changed = pg_current_xact_id()
        FROM unnest(changed_ids, changed_versions, changed_dues, changed_states, changed_groups)
            AS c(id, version, due, state, grp)
        WHERE s.id = ANY (ARRAY[c.id]) AND c.grp <> ALL (bad);
    END IF;
    IF cardinality(created_ids) > 0 THEN
        INSERT INTO headwater.streams (id, path, version, due_ms, changed, state)
        SELECT c.id, c.path, c.version, nullif(c.due, -1), pg_current_xact_id(), c.state
        FROM unnest(created_ids, created_paths, created_versions, created_dues, created_states, created_groups)
            AS c(id, path, version, due, state, grp)
        WHERE c.grp <> ALL (bad);
    END IF;
    IF cardinality(fresh_ids) > 0 THEN
        INSERT INTO headwater.fresh (stream_id, start, size, last_ms, outline, data)
        SELECT f.id, f.start, f.size, f.last_ms, f.outline, f.data
        FROM unnest(fresh_ids, fresh_starts, fresh_sizes, fresh_times, fresh_outlines, fresh_data, fresh_groups)
            AS f(id, start, size, last_ms, outline, data, grp)
        WHERE f.grp <> ALL (bad);
    END IF;
    IF cardinality(producer_ids) > 0 THEN
        INSERT INTO headwater.producers (stream_id, producer, epoch, seq, at_ms, turn, hash)
        SELECT p.id, p.name, p.epoch, p.seq, p.at_ms, p.turn, p.hash
        FROM unnest(producer_ids, producer_names, producer_epochs, producer_seqs, producer_times, producer_turns,
                    producer_hashes, producer_groups) AS p(id, name, epoch, seq, at_ms, turn, hash, grp)
        WHERE p.grp <> ALL (bad)
        ON CONFLICT (stream_id, producer) DO UPDATE
        SET epoch = excluded.epoch, seq = excluded.seq, at_ms = excluded.at_ms, turn = excluded.turn;
    END IF;
    IF cardinality(written_keys) > 0 THEN
        INSERT INTO headwater.documents (key, version, token, data)
        SELECT d.key, d.version, d.token, d.data
        FROM unnest(written_keys, written_versions, written_tokens, written_data, written_groups)
            AS d(key, version, token, data, grp)
        WHERE d.grp <> ALL (bad)
        ON CONFLICT (key) DO UPDATE
        SET version = excluded.version, token = excluded.token, data = excluded.data;
    END IF;
    IF cardinality(removed_keys) > 0 THEN
        DELETE FROM headwater.documents d USING unnest(removed_keys, removed_groups) AS r(key, grp)
        WHERE d.key = ANY (ARRAY[r.key]) AND r.grp <> ALL (bad);
    END IF;
    IF cardinality(unread_ids) > 0 THEN
        INSERT INTO headwater.garbage (stream_id, low, high)
        SELECT u.id, u.low, u.high
        FROM unnest(unread_ids, unread_lows, unread_highs, unread_groups) AS u(id, low, high, grp)
        WHERE u.grp <> ALL (bad)
        ON CONFLICT (stream_id, low) DO UPDATE SET high = greatest(headwater.garbage.high, excluded.high);
    END IF;
    IF cardinality(changed_ids) > 0 OR cardinality(created_ids) > 0 OR cardinality(deleted_ids) > 0 THEN
        INSERT INTO headwater.moves (xid, server, ids, gone, gone_paths)
        VALUES (pg_current_xact_id(), this_server, changed_ids || created_ids, deleted_ids, deleted_paths);
    END IF;
    IF bad = '{}' THEN
        RETURN NULL;
    END IF;
    UPDATE headwater.servers SET outdated = bad WHERE id = this_server;
    RETURN bad;
END
$$;

-- A batch in which every record only appends to one stream, as in most batches, and every stream gets one row of bytes. It
-- does what `store_batch` does, in fewer steps: the statement that writes the states compares their versions. It locks
-- the streams in the order of the arrays, which is that of their ids. Every stream is a group of its own. `dues` may be
-- shorter than the other arrays: the rest has no deadline.
CREATE FUNCTION headwater.store_appends(
    this_server bigint, this_epoch bigint, this_batch bigint, chained boolean, patient boolean,
    ids bigint[], groups integer[], former_versions bigint[], versions bigint[], dues bigint[], states bytea[],
    starts bigint[], sizes bigint[], times bigint[], outlines bytea[], data bytea[],
    producer_ids bigint[], producer_names bytea[], producer_epochs bigint[], producer_seqs bigint[],
    producer_times bigint[], producer_turns bigint[], producer_hashes bigint[], producer_groups integer[]
) RETURNS integer[] LANGUAGE plpgsql AS $$
DECLARE
    bad integer[] := '{}';
    free bigint[];
    written bigint;
BEGIN
    UPDATE headwater.servers SET batch = this_batch, outdated = NULL
    WHERE id = this_server AND epoch = this_epoch AND (NOT chained OR (batch = this_batch - 1 AND outdated IS NULL));
    IF NOT FOUND THEN
        RETURN headwater.not_moved(this_server, this_epoch, chained);
    END IF;

    IF NOT patient THEN
        free := ARRAY(SELECT s.id FROM headwater.streams s WHERE s.id = ANY (ids) ORDER BY s.id
                      FOR NO KEY UPDATE SKIP LOCKED);
    END IF;
    UPDATE headwater.streams s
    SET version = b.version, due_ms = nullif(b.due, -1), state = b.state, changed = pg_current_xact_id()
    FROM unnest(ids, former_versions, versions, dues, states) AS b(id, former_version, version, due, state)
    WHERE s.id = ANY (ARRAY[b.id]) AND s.version = b.former_version AND (patient OR s.id = ANY (free));
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written = cardinality(ids) THEN
        INSERT INTO headwater.fresh (stream_id, start, size, last_ms, outline, data)
        SELECT * FROM unnest(ids, starts, sizes, times, outlines, data);
    ELSE
        -- What this transaction has not changed was not current, also if it has the version of `versions`.
        bad := ARRAY(
            SELECT b.grp FROM unnest(ids, groups) AS b(id, grp)
            LEFT JOIN headwater.streams s ON s.id = ANY (ARRAY[b.id])
            WHERE s.changed IS DISTINCT FROM pg_current_xact_id()
        );
        INSERT INTO headwater.fresh (stream_id, start, size, last_ms, outline, data)
        SELECT f.id, f.start, f.size, f.last_ms, f.outline, f.data
        FROM unnest(ids, starts, sizes, times, outlines, data, groups)
            AS f(id, start, size, last_ms, outline, data, grp)
        WHERE f.grp <> ALL (bad);
    END IF;
    IF cardinality(producer_ids) > 0 THEN
        INSERT INTO headwater.producers (stream_id, producer, epoch, seq, at_ms, turn, hash)
        SELECT p.id, p.name, p.epoch, p.seq, p.at_ms, p.turn, p.hash
        FROM unnest(producer_ids, producer_names, producer_epochs, producer_seqs, producer_times, producer_turns,
                    producer_hashes, producer_groups) AS p(id, name, epoch, seq, at_ms, turn, hash, grp)
        WHERE p.grp <> ALL (bad)
        ON CONFLICT (stream_id, producer) DO UPDATE
        SET epoch = excluded.epoch, seq = excluded.seq, at_ms = excluded.at_ms, turn = excluded.turn;
    END IF;
    INSERT INTO headwater.moves (xid, server, ids, gone, gone_paths)
    VALUES (pg_current_xact_id(), this_server, ids, '{}', '{}');
    IF bad = '{}' THEN
        RETURN NULL;
    END IF;
    UPDATE headwater.servers SET outdated = bad WHERE id = this_server;
    RETURN bad;
END
$$;
