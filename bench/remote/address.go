package remote

import (
	"fmt"
	"net/url"
	"strings"
)

// Address is how ssh reaches a machine. What is empty comes from ssh's configuration.
type Address struct {
	User string
	Host string // a name, an address or a Host of ssh's configuration
	Port string
}

// AddressError: a text is no Address.
type AddressError struct{ Text, Why string }

func (e *AddressError) Error() string { return fmt.Sprintf("node %q: %s", e.Text, e.Why) }

// scheme begins the text of every Address.
const scheme = "ssh://"

// IsAddress reports whether a text is meant as an Address.
func IsAddress(text string) bool { return strings.HasPrefix(text, scheme) }

// ParseAddress parses "ssh://[USER@]HOST[:PORT]". The error is an *AddressError.
func ParseAddress(text string) (Address, error) {
	bad := func(why string) (Address, error) { return Address{}, &AddressError{text, why} }
	if !IsAddress(text) {
		return bad("want ssh://USER@HOST or ssh://USER@HOST:PORT")
	}
	u, err := url.Parse(text)
	if err != nil {
		return bad("want ssh://USER@HOST or ssh://USER@HOST:PORT")
	}
	a := Address{User: u.User.Username(), Host: u.Hostname(), Port: u.Port()}
	_, hasPassword := u.User.Password()
	switch {
	case hasPassword:
		return bad("a password does not belong on a command line: use a key")
	case a.Host == "":
		return bad("it names no host")
	case u.Path != "" && u.Path != "/", u.RawQuery != "", u.Fragment != "":
		return bad("nothing may follow the host and its port")
	case strings.HasPrefix(a.Host, "-"), strings.HasPrefix(a.User, "-"), strings.ContainsAny(a.User+a.Host, " \t\n'\"`$;&|<>(){}\\"):
		return bad("user and host may not begin with - or contain characters of the shell")
	}
	return a, nil
}

// String returns the address as ParseAddress takes it.
func (a Address) String() string {
	host := a.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if a.User != "" {
		host = a.User + "@" + host
	}
	if a.Port != "" {
		host += ":" + a.Port
	}
	return scheme + host
}

// arguments returns the arguments of ssh that name the machine.
func (a Address) arguments() []string {
	var args []string
	if a.User != "" {
		args = append(args, "-l", a.User)
	}
	if a.Port != "" {
		args = append(args, "-p", a.Port)
	}
	return append(args, "--", a.Host)
}
