package policy_test

import (
	"fmt"
	"net/netip"
	"strings"

	"cleat/packet"
	"cleat/policy"
	"cleat/usernet"
)

func Example() {
	rules, err := policy.Parse("build.policy", strings.NewReader(`
deny  10.0.0.0/8
allow 10.1.2.3:443/tcp   # the registry
default allow
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := policy.New(policy.Config{Rules: rules})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, to := range []string{"10.1.2.3:443", "10.1.2.3:22", "192.0.2.1:443", "169.254.169.254:80"} {
		f := usernet.Flow{Protocol: packet.TCP, Destination: netip.MustParseAddrPort(to)}
		fmt.Printf("%s: %v; %s\n", to, p.Judge(f).Action == usernet.Allow, p.Explain(f).Reason)
	}
	// Output:
	// 10.1.2.3:443: true; allow 10.1.2.3:443/tcp
	// 10.1.2.3:22: false; deny 10.0.0.0/8
	// 192.0.2.1:443: true; no rule denies it
	// 169.254.169.254:80: false; cloud metadata service (built in; "allow 169.254.169.254" lifts it)
}
