package packet

// ErrorKind is what an ICMP error says, for both versions.
type ErrorKind uint8

// The kinds of errors.
const (
	ErrorNet        ErrorKind = iota // no route
	ErrorHost                        // address unreachable
	ErrorPort                        // port unreachable
	ErrorProtocol                    // protocol unreachable; ICMPv6: unrecognized next header
	ErrorProhibited                  // administratively prohibited
	ErrorTTL                         // time exceeded in transit
)
