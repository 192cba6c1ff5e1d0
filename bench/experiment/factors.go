package experiment

import (
	"slices"
	"strconv"
	"strings"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/multipath"
)

// Names of further factors, in Group.Factors and in cells.
const (
	offeredFactor   = "offered"       // Rate, Unlimited or Search
	rateFactor      = cell.RateFactor // transactions per second on a schedule, a share of what the slowest network carries, or cell.ClosedRate
	gsoFactor       = "gso"           // "on": UDP_SEGMENT and UDP_GRO
	checksumFactor  = "checksum"      // "off": the devices do not offload checksums
	vxlanPortFactor = "vxlan_port"    // UDP destination port
	hairpinFactor   = "hairpin"       // "on": the switch reflects frames, as in 802.1Qbg
	peerFactor      = "peer"          // of a container on a rootless or a named network: where the other end of its traffic is
	portsFactor     = "ports"         // how many ports a named network publishes

	// Of networks over several links.
	linkRateFactor  = "link_rate" // Rate of each link; Experiment.LinkRate takes precedence over a group's
	variantFactor   = "variant"   // one of multipath.Variants
	lossFactor      = "loss"      // share of the packets that the lossy link of the variant "loss" drops
	outerFactor     = "outer"     // IP version of the links' addresses
	schedulerFactor = "scheduler" // of our tunnel
	cryptoFactor    = "crypto"    // "on": our tunnel has a key
	settingsFactor  = "settings"  // of rivals: "best" gives them all that they can be told
	containedFactor = "contained" // what is in containers: traffic's ends, or our tunnel

	// Of the work "attach", "burst" and, on named networks, "memory".
	linkFactor      = "link"      // kind of link that the container is given; a named network has its own
	endpointsFactor = "endpoints" // of the bridge, the parent or the network, with the measured one
	parallelFactor  = "parallel"  // how many containers a burst attaches at the same time

	// Of networks that span hosts.
	dataplaneFactor = "dataplane" // how hosts of cleat-node reach each other's containers
	datapathFactor  = "datapath"  // what forwards the packets of Cleat's networks and tunnels
	eventFactor     = "event"     // what the work "event" makes happen
	hostsFactor     = "hosts"     // how many hosts the work "event" has

	// BetweenFactor is set to a pair of machines (Experiment.Between), and can't be given.
	BetweenFactor = "between"

	// workFactor is set to "loaded" in cells of that work, and can't be given: such a cell
	// measures what one of work "tcp" does, and more. Its name tells results apart.
	workFactor = "work"
)

// Levels of factors, the default first.
var (
	peers         = []string{peerOutside, "host-loopback", peerHostAddress, peerContainer, peerHairpin, peerMasquerade}
	outers        = []string{"ipv4", "ipv6"}
	schedulers    = []string{"adaptive", "weighted", "flow", "duplicate"}
	settings      = []string{"default", "best"}
	containeds    = []string{"ends", containedProgram}
	attachedLinks = []string{"bridge", "macvlan"}                              // all attachers can create these
	datapaths     = []string{"auto", "nft", "bpf", ownDatapath}                // those of cleat net create --datapath, and of tunnels
	dataplanes    = []string{"auto", "routes", "vxlan", "geneve", "wireguard"} // those of cleat-node up --dataplane
	events        = []string{eventJoin, "endpoint", eventName, eventDeath, "healing", eventMove, eventAddress}
)

const (
	peerOutside      = "outside"      // a node beyond the host
	peerHostAddress  = "host-address" // the host, inbound by its own address
	peerContainer    = "container"    // another container on the same named network
	peerHairpin      = "hairpin"      // the same, by the port that the host publishes
	peerMasquerade   = "masquerade"   // a node beyond the host, which a container on a named network asks
	containedProgram = "program"      // our tunnel; the ends are native
	defaultLoss      = "1%"           // multipath.DefaultLoss
	defaultRate      = "50%"          // the slowest network has idle time, and no request waits for others often
	ownDatapath      = "user"         // of a tunnel: its program

	// maxEndpoints is how many ports a Linux bridge can have (BR_PORT_BITS in
	// net/bridge/br_private.h is 10, and port 0 is not used).
	maxEndpoints = 1023

	// These attach containers of Docker's. Each has processes of its own, and each published port has two,
	// but not with those of cleat, where others are namespaces.
	dockerConnect     = "docker-connect"
	dockerBridge      = "docker-bridge"
	cleatDocker       = "cleat-docker"
	cleatDockerDirect = "cleat-docker-direct"
	cleatOverlay      = "cleat-overlay"
	dockerOverlay     = "docker-overlay"
	mostOfDocker      = 100 // containers or ports that are tried

	eventJoin    = "join"
	eventName    = "name"
	eventDeath   = "death"
	eventMove    = "move"
	eventAddress = "address"

	minHosts, maxHosts = 3, 100 // of the work "event"; with fewer the registry of cleat-node has no spare member

	maxPorts    = 20000 // as many as package wiring has room for below ip_local_port_range
	maxParallel = 500
)

// factor is a further factor that a group may vary.
type factor struct {
	name    string
	check   func(level string) *Error
	applies func(k kind, network catalog.Entry) bool
	level   string // default; "": the cell does not mention the factor
}

var factors = []factor{
	{offeredFactor, checkOffered, func(k kind, _ catalog.Entry) bool { return k.name == UDP }, string(Unlimited)},
	{rateFactor, checkTransactions, func(k kind, _ catalog.Entry) bool { return k.transactions }, defaultRate},
	{gsoFactor, checkOnOff, func(k kind, _ catalog.Entry) bool { return k.name == UDP }, ""},
	{checksumFactor, checkOnOff, func(k kind, n catalog.Entry) bool {
		return !k.untimed && len(n.Kinds) > 0 && n.Role != catalog.Named && !n.Cluster
	}, ""},
	{hairpinFactor, checkOnOff, func(_ kind, n catalog.Entry) bool { return n.Name == "macvlan-vepa" }, ""},
	{peerFactor, checkWord("peer", peers), func(k kind, n catalog.Entry) bool {
		return n.Role == catalog.Rootless || n.Role == catalog.Named && !k.untimed
	}, ""},
	{portsFactor, checkCount("ports", maxPorts), func(k kind, n catalog.Entry) bool { return n.Role == catalog.Named && (!k.untimed || k.name == Memory) }, ""},
	{vxlanPortFactor, checkPort, func(_ kind, n catalog.Entry) bool { return slices.Contains(n.Kinds, "vxlan") && !n.Cluster }, ""},
	{linkRateFactor, checkLinkRate, isMultipath, ""},
	{variantFactor, checkWord("variant", multipath.Variants()), isMultipath, multipath.Plain},
	{lossFactor, checkLoss, isMultipath, ""},
	{zooFactor, checkZoo, isLoadedMultipath, ""},
	{zooCapFactor, checkZooCap, isLoadedMultipath, defaultZooCap},
	{zooLinkFactor, checkZooLink, isLoadedSingle, ""},
	{zooCandidateFactor, checkZooLink, isLoadedSingle, "1"},
	{outerFactor, checkWord("outer", outers), isMultipath, outers[0]},
	{schedulerFactor, checkWord("scheduler", schedulers), isTunnel, schedulers[0]},
	{cryptoFactor, checkOnOff, isTunnel, "off"},
	{settingsFactor, checkWord("settings", settings), isRival, settings[0]},
	{containedFactor, checkWord("contained", containeds), isTunnel, containeds[0]},
	{datapathFactor, checkWord("datapath", datapaths), func(k kind, n catalog.Entry) bool {
		return isTunnel(k, n) || !k.untimed && slices.Contains([]string{cleatOverlay, "cleat-bridge", "cleat-routed"}, n.Name)
	}, ""},
	{dataplaneFactor, checkWord("dataplane", dataplanes), func(_ kind, n catalog.Entry) bool { return n.Name == cleatOverlay }, ""},
	{eventFactor, checkWord("event", events), isEvent, "endpoint"},
	{hostsFactor, checkHosts, isEvent, strconv.Itoa(minHosts)},
	{linkFactor, checkWord("link", attachedLinks), isAttacher, attachedLinks[0]},
	{endpointsFactor, checkCount("endpoints", maxEndpoints), hasEndpoints, "1"},
	{parallelFactor, checkCount("parallel", maxParallel), func(k kind, _ catalog.Entry) bool { return k.name == Burst }, "100"},
}

// FactorNames returns the names of the further factors.
func FactorNames() []string {
	names := make([]string, len(factors))
	for i, f := range factors {
		names[i] = f.name
	}
	return names
}

func isAttacher(_ kind, n catalog.Entry) bool        { return n.Role == catalog.Attacher }
func isMultipath(_ kind, n catalog.Entry) bool       { return n.Role == catalog.Multipath }
func isLoadedMultipath(k kind, n catalog.Entry) bool { return k.name == Loaded && isMultipath(k, n) }
func isLoadedSingle(k kind, n catalog.Entry) bool    { return k.name == Loaded && n.Name == "single" }
func isTunnel(_ kind, n catalog.Entry) bool          { return n.Name == "tunnel" }

// hasEndpoints reports whether a kind of work is about the number of endpoints.
func hasEndpoints(k kind, n catalog.Entry) bool {
	return k.name == Attach || k.name == Burst || k.name == Memory && n.Role == catalog.Named
}

func isEvent(k kind, _ catalog.Entry) bool { return k.name == Event }

// isRival reports whether a network is the tunnel of another program.
func isRival(_ kind, n catalog.Entry) bool {
	return n.Role == catalog.Multipath && len(n.Programs) > 0
}

func checkWord(what string, valid []string) func(string) *Error {
	return func(level string) *Error {
		if !slices.Contains(valid, level) {
			return unknown("", what, level, valid)
		}
		return nil
	}
}

var checkOnOff = checkWord("level", []string{"on", "off"})

func checkOffered(level string) *Error {
	if _, err := Rate(level).BitsPerSecond(); err != nil || level == "" {
		return invalid("", "offered rate %q: want a number in bit/s such as 10G, %q or %q", level, Unlimited, Search)
	}
	return nil
}

func checkTransactions(level string) *Error {
	if _, ok := rateShare(level); ok || level == cell.ClosedRate {
		return nil
	}
	if n, err := strconv.ParseFloat(level, 64); err != nil || !(n > 0) || n > 1e7 {
		return invalid("", "rate %q: want transactions per second, e.g. 1000, a share of what the slowest network carries, e.g. %s, or %s", level, defaultRate, cell.ClosedRate)
	}
	return nil
}

// rateShare returns the share that a level like "50%" is.
func rateShare(level string) (share float64, ok bool) {
	text, ok := strings.CutSuffix(level, "%")
	percent, err := strconv.ParseFloat(text, 64)
	if !ok || err != nil || !(percent > 0) || percent > 100 {
		return 0, false
	}
	return percent / 100, true
}

func checkPort(level string) *Error {
	if p, err := strconv.ParseUint(level, 10, 16); err != nil || p == 0 {
		return invalid("", "port %q: want 1…65535, e.g. 4789 (IANA) or 8472 (Linux before that)", level)
	}
	return nil
}

func checkLinkRate(level string) *Error {
	if v, err := Rate(level).BitsPerSecond(); err != nil || v == 0 {
		return invalid("", "link rate %q: want a number in bit/s such as 100M", level)
	}
	return nil
}

func checkLoss(level string) *Error {
	if v, err := multipath.ParseShare(level); err != nil || v == 0 || v == 1 {
		return invalid("", "loss %q: want a share of the packets, e.g. 1%% or 0.01", level)
	}
	return nil
}

func checkHosts(level string) *Error {
	if n, err := strconv.Atoi(level); err != nil || n < minHosts || n > maxHosts {
		return invalid("", "hosts %q: want %d…%d", level, minHosts, maxHosts)
	}
	return nil
}

func checkCount(what string, most int) func(string) *Error {
	return func(level string) *Error {
		if n, err := strconv.Atoi(level); err != nil || n < 1 || n > most {
			return invalid("", "%s %q: want 1…%d", what, level, most)
		}
		return nil
	}
}
