package remote

import (
	"fmt"
	"runtime"
	"strings"
)

// The script that receives this program on another machine. The login shell may be any,
// so the script is one word for it, in single quotes and without a line break. What it
// says are lines that begin with a random mark: a login shell may print, too.
//
//	MARK arch SYSTEM MACHINE     before anything is made
//	MARK send DIRECTORY          it waits for the program's bytes
//	MARK run                     messages follow
//	MARK fail WHAT WORDS         it gives up, and removes what it made
//
// It reads exactly the program's bytes, since nothing follows them before it says "run".
// The bytes may stop coming: then timeout, where there is one, ends the wait.
const script = `m=%s; n=%d; k=%d; sum=%s; root=%d; limit=%d; ` +
	`say() { printf "%%s %%s\n" "$m" "$*"; }; ` +
	`t=; why=; pre=; wait=; ` +
	`clean() { if [ -n "$t" ]; then rm -rf "$t"; fi; }; ` +
	`trap clean EXIT; trap "exit 1" HUP INT TERM PIPE; umask 077; ` +
	`for p in uname id mktemp df tail head sha256sum; do ` +
	`if ! command -v $p >/dev/null; then say fail program $p; exit 1; fi; done; ` +
	`say arch "$(uname -s)" "$(uname -m)"; ` +
	`if [ "$(id -u)" != 0 ]; then ` +
	`if [ $root = 0 ]; then pre="env CLEAT_LAB=none"; ` +
	`elif e=$(sudo -n true 2>&1); then pre="sudo -n"; ` +
	`else say fail sudo "$(id -un)" $e; exit 1; fi; fi; ` +
	`for d in "$XDG_RUNTIME_DIR" /run /tmp /var/tmp; do ` +
	`if [ -z "$d" ] || [ ! -d "$d" ]; then continue; fi; ` +
	`if ! t=$(mktemp -d "$d/cleat-node-XXXXXXXXXX" 2>/dev/null); then t=; why="$why, $d is not writable"; continue; fi; ` +
	`if ! printf "#!/bin/sh\n" 2>/dev/null >"$t/try"; then why="$why, $d is full"; ` +
	`elif ! { chmod 700 "$t/try" && "$t/try"; } 2>/dev/null; then why="$why, $d does not let programs run (noexec)"; ` +
	`else set -- $(df -Pk "$t" | tail -n 1); case "$4" in "" | *[!0-9]*) break;; esac; ` +
	`if [ "$4" -ge $k ]; then break; fi; why="$why, $d has $4 KiB left of the $k that are needed"; fi; ` +
	`rm -rf "$t"; t=; done; ` +
	`if [ -z "$t" ]; then say fail directory "$why"; exit 1; fi; ` +
	`rm -f "$t/try"; ` +
	`if command -v timeout >/dev/null; then wait="timeout $limit"; fi; ` +
	`say send "$t"; ` +
	`if ! $wait head -c $n >"$t/cleat"; then say fail write "$t"; exit 1; fi; ` +
	`set -- $(sha256sum "$t/cleat"); ` +
	`if [ "$1" != $sum ]; then say fail sum "$1"; exit 1; fi; ` +
	`chmod 700 "$t/cleat"; ` +
	`say run; ` +
	`$pre "$t/cleat" bench node "$t"`

// bootstrap returns the command for the other machine's login shell.
func bootstrap(mark string, size int64, sum string, root bool) string {
	needRoot := 0
	if root {
		needRoot = 1
	}
	kib := size>>10 + spareKiB
	return "exec sh -c '" + fmt.Sprintf(script, mark, size, kib, sum, needRoot, int(uploadLimit.Seconds())) + "'"
}

// spareKiB is the space that must be left beside the program.
const spareKiB = 64

// machines are the answers of uname -m for this program's architecture.
func machines() []string {
	if m := map[string][]string{
		"amd64": {"x86_64"}, "arm64": {"aarch64"}, "386": {"i386", "i486", "i586", "i686", "x86_64"},
		"arm": {"armv6l", "armv7l", "armv8l"},
	}[runtime.GOARCH]; m != nil {
		return m
	}
	return []string{runtime.GOARCH}
}

// Refused: the other machine can't run this program. It has been left as it was.
type Refused struct {
	Node   string
	What   string // why
	Remedy string // what to type or change
}

func (r *Refused) Error() string { return r.Node + ": " + r.What }

// Hint returns the remedy.
func (r *Refused) Hint() string { return r.Remedy }

// refusal returns the error for the words after "fail".
func refusal(node string, words []string) error {
	what, rest := "", ""
	if len(words) > 0 {
		what, rest = words[0], strings.Join(words[1:], " ")
	}
	switch what {
	case "program":
		return &Refused{node, "the program " + rest + " is missing there", "install coreutils on that machine"}
	case "sudo":
		user, said, _ := strings.Cut(rest, " ")
		return &Refused{node, fmt.Sprintf("networks need root, and sudo does not work without a password for %s: %s", user, said),
			fmt.Sprintf("connect as root (ssh://root@…), or let %s use sudo without a password there: echo '%s ALL=(ALL) NOPASSWD: ALL' | sudo tee /etc/sudoers.d/cleat-bench", user, user)}
	case "directory":
		return &Refused{node, "no directory there can hold and run this program: " + strings.TrimPrefix(rest, ", "),
			"make space in one of them, or set XDG_RUNTIME_DIR there to a directory of yours on a file system without noexec"}
	case "write":
		return &Refused{node, "this program did not arrive whole in " + rest, "look for space there with df " + rest}
	case "sum":
		return &Refused{node, "this program arrived changed: its SHA-256 there is " + rest, "try again; if it happens again, look at that machine's memory and disks"}
	}
	return &Refused{node, "it gave up: " + strings.Join(words, " "), ""}
}
