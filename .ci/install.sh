#!/bin/bash
# Installs to a directory of its own, holds what is there against packaging/manifest, lets
# systemd read its part, and uninstalls: what was there before must be all that is left.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/etc/agentguard"
echo 'ceiling: {}' >"$root/etc/agentguard/ceiling.yaml" # the administrator's own
fail() { echo "install.sh: $*" >&2; exit 1; }

make -s install DESTDIR="$root" PREFIX=/usr
"$root/usr/bin/agentguard" --version >/dev/null
(cd "$root" && find . -type f ! -name ceiling.yaml -printf '%m /%P\n') |
	sed -e 's|\(/share/doc/agentguard/\).*|\1|' -e 's|\(/man1/agentguard\).*\.1|\1*.1|' | LC_ALL=C sort -u | diff packaging/manifest - || fail "that is not what packaging/manifest says"

# Each command has its page, and each page names its command.
"$root/usr/bin/agentguard" --help | sed -n '/^Available Commands:/,/^$/p' | awk 'NR > 1 && NF { print $1 }' | grep -vx help | while read -r c; do
	grep -q "agentguard $c\|agentguard-$c" "$root/usr/share/man/man1/agentguard-$c.1" || fail "no manual page for $c"
done
for f in README.md NOTICE LICENSE docs/record.md third_party/github.com/spf13/cobra/LICENSE.txt; do
	[[ -s $root/usr/share/doc/agentguard/$f ]] || fail "share/doc/agentguard/$f is not there"
done
bash -n "$root/usr/share/bash-completion/completions/agentguard"
grep -rl '@BINDIR@' "$root" && fail "@BINDIR@ was left in"

if command -v systemd-analyze >/dev/null; then # which looks whether the program is there
	mkdir "$work/units"
	for u in "$root"/usr/lib/systemd/system/*; do sed "s|=/usr/bin/|=$root/usr/bin/|" "$u" >"$work/units/${u##*/}"; done
	out=$(systemd-analyze verify --man=no "$work"/units/* 2>&1 | grep agentguard || :)
	[[ -z $out ]] || fail "systemd-analyze verify: $out"
fi
if command -v systemd-tmpfiles >/dev/null && [[ $EUID == 0 ]]; then
	systemd-tmpfiles --root="$root" --create agentguard.conf
	[[ $(stat -c '%a %u' "$root/run/agentguard" "$root/var/lib/agentguard") == $'755 0\n700 0' ]] || fail "systemd-tmpfiles did not make the directories as they are to be"
fi

make -s uninstall DESTDIR="$root" PREFIX=/usr
left=$(cd "$root" && find . -type f)
[[ $left == ./etc/agentguard/ceiling.yaml ]] || fail "left after uninstall: $left"
echo "installed, verified, uninstalled: $(wc -l <packaging/manifest) lines of packaging/manifest"
