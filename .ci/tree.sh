#!/bin/bash
# What no other tool looks at: each rule says why it is here.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
bad=0
rule() { # rule WHY FINDINGS
	[[ -z $2 ]] && return
	bad=1
	printf 'tree.sh: %s:\n%s\n' "$1" "$2" >&2
}
# The kernel loads these programs as GPL; a file without the line would be neither.
rule "no SPDX line with both licences" "$(git ls-files 'bpf/*.c' 'bpf/*.h' | xargs -r grep -L 'SPDX-License-Identifier: Apache-2.0 OR GPL-2.0')"
rule "unfinished work" "$(git grep -nIE '\b(T[O]DO|FIX[M]E|X[X]X)\b|not[ ]implemented' -- '*.go' '*.c' '*.h' '*.sh')"
# One helper skips, so that AGENTGUARD_TEST_REQUIRE can turn every skip into a failure.
rule "skip outside internal/testenv" "$(git grep -nE '\b[tb]\.Skip(f|Now)?\(' -- '*_test.go' ':!internal/testenv')"
# cilium/ebpf is large and asks the kernel questions as it starts.
rule "cilium/ebpf imported outside bpf" "$(git grep -lE '"github.com/cilium/ebpf' -- '*.go' ':!bpf')"
# One page says what the pieces are; it is of no use when a piece is missing.
rule "not in ARCHITECTURE.md's table" "$(git ls-files '*.go' ':!*_test.go' ':!bench' ':!testdata' ':!.ci' ':!*/gen/*' | xargs -n1 dirname | sort -u | while read -r d; do [[ $d == internal/testenv ]] || grep -qF "| \`$d\` |" ARCHITECTURE.md || echo "$d"; done)"
# The arrows on that page are the imports, and an import that is not on it is a new arrow.
module=$(go list -m)
rule "imports of ours that are not as in ARCHITECTURE.md's table (<), or not in the code (>)" "$(diff \
	<(go list -f '{{range .Imports}}{{$.ImportPath}} {{.}}{{"\n"}}{{end}}' ./cmd/... ./supervisor/... ./landlock ./bpf ./policy ./trace/... ./internal/... |
		awk -v m="$module/" 'index($2, m) == 1 { gsub(m, ""); print }' | grep -v '^supervisor ' | sort) \
	<(awk -F '|' '/^\| `/ { gsub(/[` ]/, ""); n = split($4, to, ","); for (i = 1; i <= n; i++) if (to[i] != "none" && $2 != "supervisor") print $2, to[i] }' ARCHITECTURE.md | sort) | grep '^[<>]')"
# A decision that nothing leads to is not found by who needs it.
rule "a decision that nothing refers to" "$(git ls-files 'docs/decisions/*.md' | while read -r f; do n=${f#docs/decisions/}; n=${n%%-*}; git grep -qwE "$n" -- ':!docs/decisions' ':!*.s' ':!*testdata*' '*.go' '*.md' '*.c' '*.h' '*.sh' Makefile || echo "$f"; done)"
# Every page can be found from the README.
rule "not linked from README.md" "$(git ls-files 'docs/*.md' ':!docs/decisions' | while read -r f; do grep -qF "($f)" README.md || echo "$f"; done)"
rule "not executable" "$(git ls-files -s '*.sh' .ci/run | awk '$1 != 100755 { print $4 }' | xargs -r grep -l '^#!')"
# What is built is not kept, but for what the program embeds.
rule "a program in the tree" "$(git ls-files ':!bpf/*.o' ':!supervisor/init/*.elf' | xargs -r -d '\n' grep -lUP '\A\x7fELF')"
exit $bad
