// Package args parses the command line of netavark. It imports little, so that the small program that
// engines start can use it.
package args

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Program and Plugin are the first words of requests to a keeper, and the names of programs.
const (
	Program = "netavark"
	Plugin  = "netavark-plugin"
)

// Line is a command line.
type Line struct {
	Command    string   // create, setup, teardown, update, version, …
	Operand    string   // of setup and teardown, the path of a network namespace; of update, a network's name
	DNSServers []string // of update: as given, in one text or several

	File     string   // to read instead of standard input; "": none
	Words    []string // the command line without File
	Config   string   // directory for state, usually on a tmpfs
	Rootless bool     // the caller says so
	Plugins  []string // directories with plug-ins
	Version  bool     // --version
	Help     bool     // --help
}

// UsageError is a mistake in a command line.
type UsageError struct{ Text string }

func (e *UsageError) Error() string { return e.Text }

// options are the options with a value, by their letters.
var options = map[string]string{"f": "file", "c": "config", "r": "rootless", "a": "aardvark-binary"}

// Parse parses the arguments after the program's name.
func Parse(words []string) (Line, error) {
	var l Line
	var operands []string
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		switch {
		case word == "--":
			operands, words = append(operands, words...), nil
			continue
		case word == "--version" || word == "-V":
			l.Version, l.Words = true, append(l.Words, word)
			continue
		case word == "--help" || word == "-h":
			l.Help, l.Words = true, append(l.Words, word)
			continue
		case !strings.HasPrefix(word, "-") || word == "-":
			operands = append(operands, word)
			if operands[0] == "dhcp-proxy" { // its options do not matter
				words = nil
			}
			continue
		}
		name, value, hasValue := split(word)
		if !hasValue {
			if len(words) == 0 {
				return l, &UsageError{fmt.Sprintf("a value is required for '%s'", word)}
			}
			value, words = words[0], words[1:]
		}
		if err := l.set(name, value); err != nil {
			return l, err
		}
		if name != "file" {
			l.Words = append(l.Words, "--"+name+"="+value)
		}
	}
	l.Words = append(l.Words, operands...)
	return l, l.command(operands)
}

// split splits an option into its long name and its value.
func split(word string) (name, value string, hasValue bool) {
	if long, ok := strings.CutPrefix(word, "--"); ok {
		return cut(long)
	}
	name = options[word[1:2]]
	if name == "" {
		return word, "", true
	}
	if len(word) > 2 {
		return name, strings.TrimPrefix(word[2:], "="), true
	}
	return name, "", false
}

func cut(long string) (name, value string, hasValue bool) { return strings.Cut(long, "=") }

func (l *Line) set(name, value string) (err error) {
	switch name {
	case "file":
		l.File = value
	case "config":
		l.Config = value
	case "rootless":
		l.Rootless, err = strconv.ParseBool(value)
	case "plugin-directory":
		l.Plugins = append(l.Plugins, value)
	case "network-dns-servers":
		l.DNSServers = append(l.DNSServers, value)
	case "aardvark-binary", "firewall-driver":
	default:
		return &UsageError{fmt.Sprintf("unexpected argument '--%s' found", strings.TrimLeft(name, "-"))}
	}
	if err != nil {
		return &UsageError{fmt.Sprintf("invalid value '%s' for '--%s'", value, name)}
	}
	return nil
}

// operandsOf is how many operands each command has.
var operandsOf = map[string]int{"create": 0, "setup": 1, "teardown": 1, "update": 1, "version": 0, "dhcp-proxy": 0, "firewalld-reload": 0, "firewall-reload": 0, "info": 0}

func (l *Line) command(operands []string) error {
	if len(operands) == 0 {
		if l.Version || l.Help {
			return nil
		}
		return &UsageError{"a command is missing"}
	}
	l.Command = operands[0]
	want, known := operandsOf[l.Command]
	switch {
	case !known:
		return &UsageError{fmt.Sprintf("unrecognized subcommand '%s'", l.Command)}
	case len(operands)-1 < want || want > 0 && operands[1] == "":
		return &UsageError{l.Command + ": an operand is missing"}
	case len(operands)-1 > want:
		return &UsageError{fmt.Sprintf("unexpected argument '%s' found", operands[want+1])}
	}
	if want > 0 {
		l.Operand = operands[1]
	}
	return nil
}

// DefaultConfig is the directory for state of a caller that names none.
const DefaultConfig = "/run/containers/networks"

// StateDir returns the state directory for a call, "" for the machine's. Networks of another host than
// process 1's have a directory of their own: those of Podman without root, which are in a namespace of the
// user's, and of tests.
func (l Line) StateDir() string {
	if os.Getenv("CLEAT_STATE_DIR") != "" || isHost() {
		return ""
	}
	dir := l.Config
	if dir == "" {
		dir = DefaultConfig
	}
	return filepath.Join(dir, "cleat")
}

// isHost reports whether this process is root in the network namespace of process 1.
func isHost() bool {
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil || strings.Join(strings.Fields(string(ids)), " ") != "0 0 4294967295" {
		return false
	}
	own, err1 := os.Readlink("/proc/self/ns/net")
	first, err2 := os.Readlink("/proc/1/ns/net")
	return err1 == nil && err2 == nil && own == first
}
