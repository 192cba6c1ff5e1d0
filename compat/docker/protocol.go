package docker

// The messages of the protocol (moby, daemon/libnetwork/drivers/remote/api and ipams/remote/api).

// mediaType is that of requests and answers (moby, pkg/plugins/transport).
const mediaType = "application/vnd.docker.plugins.v1.2+json"

type activation struct{ Implements []string }

// failure is an answer. Network drivers have Err, and IPAM drivers have Error, although ipam.md says
// that their protocol is the same (moby, libnetwork/ipams/remote/api).
type failure struct{ Err, Error string }

type driverCapabilities struct {
	Scope             string
	ConnectivityScope string
	GwAllocChecker    bool
}

type ipamCapabilities struct {
	RequiresMACAddress    bool
	RequiresRequestReplay bool
}

type addressSpaces struct {
	LocalDefaultAddressSpace  string
	GlobalDefaultAddressSpace string
}

// poolData is a pool of addresses of a network that is created.
type poolData struct {
	AddressSpace string
	Pool         string
	Gateway      string // with a prefix length; may be empty
	AuxAddresses map[string]string
}

type createNetwork struct {
	NetworkID string
	Options   map[string]any
	IPv4Data  []poolData
	IPv6Data  []poolData
}

type networkRef struct{ NetworkID string }

type endpointRef struct{ NetworkID, EndpointID string }

// iface has addresses with prefix lengths.
type iface struct {
	Address     string `json:",omitempty"`
	AddressIPv6 string `json:",omitempty"`
	MacAddress  string `json:",omitempty"`
}

type createEndpoint struct {
	NetworkID, EndpointID string
	Interface             *iface
	Options               map[string]any
}

type createdEndpoint struct{ Interface *iface }

type join struct {
	NetworkID, EndpointID, SandboxKey string
	Options                           map[string]any
}

type interfaceName struct{ SrcName, DstPrefix string }

// The types of routes (moby, libnetwork/types: NEXTHOP, CONNECTED).
const (
	viaNextHop = 0
	connected  = 1
)

type staticRoute struct {
	Destination string
	RouteType   int
	NextHop     string
}

type joined struct {
	InterfaceName         interfaceName
	Gateway               string `json:",omitempty"`
	GatewayIPv6           string `json:",omitempty"`
	StaticRoutes          []staticRoute
	DisableGatewayService bool
}

type connectivity struct {
	NetworkID, EndpointID string
	Options               map[string]any
}

type gatewayCheck struct{ SkipIPv4, SkipIPv6 bool }

type operInfo struct{ Value map[string]any }

type requestPool struct {
	AddressSpace string
	Pool         string
	SubPool      string
	Options      map[string]string
	V6           bool
}

type requestedPool struct {
	PoolID string
	Pool   string
	Data   map[string]string
}

type releasePool struct{ PoolID string }

type requestAddress struct {
	PoolID  string
	Address string
	Options map[string]string
}

type requestedAddress struct {
	Address string
	Data    map[string]string
}

type releaseAddress struct{ PoolID, Address string }

// Keys of options (moby, libnetwork/netlabel).
const (
	optionGeneric  = "com.docker.network.generic"
	optionInternal = "com.docker.network.internal"
	optionIPv6     = "com.docker.network.enable_ipv6"
	optionMTU      = "com.docker.network.driver.mtu"
	optionPorts    = "com.docker.network.portmap"
	optionAddress  = "RequestAddressType"
	typeGateway    = "com.docker.network.gateway"
	optionPrefix   = "com.docker.network." // of others
)
