#!/usr/bin/env bash
# The vLLM slice: the seed fault found on 0.13.0, shrunk, replayed there and on 0.14.0; the releases
# without it hold, and not vacuously. Says how long each part took. Prepares what is missing.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
began=$SECONDS
part() { printf '%-58s %4d s\n' "$1" $((SECONDS - began)); began=$SECONDS; }
fail() { echo "FAILED: $1" >&2; exit 1; }

for release in 0.13.0 0.14.0 0.33.0; do
  schedcheck env "vllm==$release" >/dev/null || fail "vllm==$release cannot be prepared (is a package registry reachable?)"
done
part "environments prepared or found"

status=0; schedcheck run vllm==0.13.0 --invariants REQ-001 --known none >found.txt || status=$?
[ "$status" = 1 ] || { cat found.txt; fail "0.13.0 exited $status, not 1"; }
trace=$(ls .schedcheck/traces/REQ-001-*.trace.jsonl)
actions=$(($(wc -l <"$trace") - 1))
[ "$actions" -le 10 ] || fail "the shrunk trace has $actions actions, more than 10"
part "vllm 0.13.0: the seed fault, $actions actions"

status=0; schedcheck replay "$trace" >replayed.txt || status=$?
{ [ "$status" = 1 ] && grep -q '^FAILED ' replayed.txt; } || { cat replayed.txt; fail "0.13.0 does not replay as FAILED"; }
schedcheck replay "$trace" --on vllm==0.14.0 | tee replayed.txt
grep -q '^FIXED ' replayed.txt || fail "0.14.0 does not replay as FIXED"
part "replayed: FAILED on 0.13.0, FIXED on 0.14.0"

schedcheck run vllm==0.13.0 --invariants REQ-001 >known.txt || { cat known.txt; fail "0.13.0 shows more than is known"; }
grep '^KNOWN  *REQ-001/new-after-preemption ' known.txt || { cat known.txt; fail "the seed fault is not told as known"; }
part "vllm 0.13.0: the seed fault, as the ledger says"

holds() { # release dialect how-it-comes-back
  schedcheck run "vllm==$1" --invariants REQ-001 --dialect "$2" --max-time 60 --strict >held.txt \
    || { cat held.txt; fail "$1 in dialect $2 does not hold"; }
  grep "PREEMPTED -> WAITING_FOR_REMOTE_KVS -> $3 " held.txt \
    || { cat held.txt; fail "$1 in dialect $2 never took the seed's path"; }
  part "vllm $1, dialect $2, holds"
}
holds 0.14.0 v1 resumed
holds 0.33.0 v1 resumed
holds 0.33.0 v2 new
