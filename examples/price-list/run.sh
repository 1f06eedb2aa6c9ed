#!/usr/bin/env bash
# A wholesaler publishes its price list; a shop, which is another company, keeps a copy that stays current.
# Each runs a server of its own, and they share nothing but HTTP. Here both are on this machine, in directories of their own.
set -euo pipefail
wholesaler=http://127.0.0.1:${WHOLESALER_PORT:-4451}
shop=http://127.0.0.1:${SHOP_PORT:-4452}
directory=$(mktemp -d)
cd "$directory"
mkdir wholesaler shop
trap 'kill $(jobs -p) 2> /dev/null; wait; rm -r "$directory"' EXIT

say() { printf '\n== %s\n' "$1"; }
wait_for() { for _ in {1..300}; do if "$@"; then return; fi; sleep 0.2; done; echo "did not happen: $*" >&2; exit 1; }
ready() { curl -sfo /dev/null "$1/readyz"; }
copy() { curl -sf "$shop/v1/table/pricelist?view=active" | cut -f 4,5; }  # key and record of the live rows
copy_has() { copy | grep -qF "$1"; }
follower() { curl -s "$shop/v1/table/__stp/followers" | grep -oE '"(state|last_error)":"[^"(]*'; }
refused() { follower | grep -q 'answered 401'; }
start_shop() {
  headwater serve --port "${shop##*:}" --data-dir shop/data --log-level error --follow "pricelist=$signed" > shop/log &
  shop_pid=$!
}

say 'The wholesaler makes two tokens: one for its staff, and one that lets the shop read this table and nothing else.'
staff_token=$(headwater token add wholesaler/auth.toml --name staff --scope 'admin:**')
shop_token=$(headwater token add wholesaler/auth.toml --name shop --scope 'read:pricelist')

say 'It starts its server and publishes its price list from a file.'
headwater serve --port "${wholesaler##*:}" --data-dir wholesaler/data --auth wholesaler/auth.toml > wholesaler/log &
wait_for ready "$wholesaler"
printf 'sku,name,eur\n1,tea,2.40\n2,coffee,3.10\n' > wholesaler/prices.csv
HEADWATER_TOKEN=$staff_token headwater table create pricelist --schema price --version 1 --url "$wholesaler"
HEADWATER_TOKEN=$staff_token headwater table import pricelist wholesaler/prices.csv --key sku --url "$wholesaler"

say 'The wholesaler signs the URL of the table with the token of the shop. The server of the shop follows the signed URL.'
signed=$(headwater token sign wholesaler/auth.toml "$wholesaler/v1/table/pricelist" --name shop --expires 7d)
start_shop
wait_for copy_has coffee
copy

say 'The shop is down. Meanwhile tea costs more, coffee is gone, milk is new. Only what differs is published.'
kill "$shop_pid"
wait "$shop_pid"
printf 'sku,name,eur\n1,tea,2.50\n3,milk,0.90\n' > wholesaler/prices.csv
HEADWATER_TOKEN=$staff_token headwater table import pricelist wholesaler/prices.csv --key sku --url "$wholesaler"
start_shop
wait_for copy_has milk
copy

say 'The shop may not write, and nobody may read without a token.'
printf '+\t9\t{}\n' | HEADWATER_TOKEN=$shop_token headwater table append pricelist --url "$wholesaler" || true
curl -s "$wholesaler/v1/table/pricelist" | grep -oE '"(title|detail)":"[^"]*'

say 'The contract ends: the wholesaler revokes the token. The shop gets no more rows; what it has, it keeps.'
headwater token revoke wholesaler/auth.toml shop
wait_for refused
follower
copy
