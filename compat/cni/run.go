package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"cleat/network/attach"
	"cleat/network/named"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

// Manager is the attach.Container.Manager of containers that a runtime has connected by CNI.
const Manager = "cni"

// Host is what a call changes.
type Host struct {
	Networks named.Config
	// Explain returns what to do about an error, in words; "" if it does not know. It may be nil.
	Explain func(err error) string
}

// Call is one execution of the plug-in.
type Call struct {
	Getenv func(string) string
	Stdin  []byte
	Out    io.Writer // for the result, or the error as the specification has it
}

// Variables returns the names of the variables that a call depends on.
func Variables() []string {
	return []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"}
}

// supported are the versions of the specification that calls may have.
var supported = version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")

// Codes of errors that the specification leaves to plug-ins, which begin at 100.
const (
	errInUse   = 100 // an address, a port or a name belongs to another container
	errGeneral = 999 // as with the library of the reference plug-ins
)

// ErrInput means that the configuration can't be read from the standard input.
var ErrInput = errors.New("read the configuration")

// Run executes a call and returns the exit code. If ctx ends before the call is complete, it is undone.
func Run(ctx context.Context, h Host, c Call) int {
	if err := h.run(ctx, c); err != nil {
		return h.Fail(c, err)
	}
	return 0
}

// Fail prints an error as the specification has it, and returns the exit code.
func (h Host) Fail(c Call, err error) int {
	e := struct {
		CNIVersion string `json:"cniVersion"`
		types.Error
	}{versionOf(c.Stdin), *h.asError(err)}
	text, _ := json.MarshalIndent(e, "", "    ") // strings and numbers can be encoded
	fmt.Fprintf(c.Out, "%s\n", text)
	return 1
}

// versionOf returns the version of a configuration, for an error; the newest if it has none.
func versionOf(stdin []byte) string {
	var conf struct {
		CNIVersion string `json:"cniVersion"`
	}
	if json.Unmarshal(stdin, &conf) != nil || conf.CNIVersion == "" {
		all := supported.SupportedVersions()
		return all[len(all)-1]
	}
	return conf.CNIVersion
}

// printVersions prints the supported versions, and the version of the configuration as the protocol's.
func printVersions(c Call) error {
	return json.NewEncoder(c.Out).Encode(struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}{versionOf(c.Stdin), supported.SupportedVersions()})
}

// call is a Call whose variables and configuration are valid.
type call struct {
	Host
	conf                       *config
	containerID, netns, ifname string
	args                       map[string]string // CNI_ARGS
	out                        io.Writer
}

func (h Host) run(ctx context.Context, c Call) error {
	verb := c.Getenv("CNI_COMMAND")
	verbs := map[string]func(*call, context.Context) error{"ADD": (*call).add, "DEL": (*call).del, "CHECK": (*call).check, "GC": (*call).gc, "STATUS": (*call).status}
	do := verbs[verb]
	switch {
	case verb == "VERSION":
		return printVersions(c)
	case do == nil:
		return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("CNI_COMMAND is %q", verb), "want ADD, DEL, CHECK, GC, STATUS or VERSION; container runtimes set it")
	}
	k := &call{Host: h, out: c.Out, containerID: c.Getenv("CNI_CONTAINERID"), netns: c.Getenv("CNI_NETNS"), ifname: c.Getenv("CNI_IFNAME")}
	var err error
	if k.conf, err = parseConfig(c.Stdin); err != nil {
		return err
	}
	if err := checkVersion(verb, k.conf.CNIVersion); err != nil {
		return err
	}
	if verb != "GC" && verb != "STATUS" {
		if err := k.checkVariables(verb); err != nil {
			return err
		}
	}
	if k.args, err = parseArgs(c.Getenv("CNI_ARGS")); err != nil {
		return err
	}
	return do(k, ctx)
}

// since is the version of the specification in which a verb appeared.
var since = map[string]string{"ADD": "0.3.0", "DEL": "0.3.0", "CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}

// checkVersion reports whether a verb may be called with a configuration of some version.
func checkVersion(verb, v string) error {
	if !slices.Contains(supported.SupportedVersions(), v) {
		return types.NewError(types.ErrIncompatibleCNIVersion, fmt.Sprintf("cniVersion %q is not supported", v), "want one of "+strings.Join(supported.SupportedVersions(), ", "))
	}
	if ok, err := version.GreaterThanOrEqualTo(v, since[verb]); err != nil || !ok {
		return types.NewError(types.ErrIncompatibleCNIVersion, fmt.Sprintf("%s needs cniVersion %s or later", verb, since[verb]), "the configuration has "+v)
	}
	return nil
}

// checkVariables checks the variables of a verb that is about one container. An error names the variables.
func (c *call) checkVariables(verb string) error {
	var missing []string
	for _, v := range []struct {
		name, value string
		optional    bool
		check       func(string) *types.Error
	}{
		{"CNI_CONTAINERID", c.containerID, false, utils.ValidateContainerID},
		{"CNI_NETNS", c.netns, verb == "DEL", func(string) *types.Error { return nil }},
		{"CNI_IFNAME", c.ifname, false, utils.ValidateInterfaceName},
	} {
		if v.value == "" {
			if !v.optional {
				missing = append(missing, v.name)
			}
			continue
		}
		if err := v.check(v.value); err != nil {
			return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("%s is %q", v.name, v.value), strings.TrimSpace(err.Msg+"; "+err.Details))
		}
	}
	if len(missing) > 0 {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "not set: "+strings.Join(missing, ", "), "container runtimes set these variables")
	}
	return nil
}

// asError returns an error as the specification has it.
func (h Host) asError(err error) *types.Error {
	var e *types.Error
	if errors.As(err, &e) {
		return e
	}
	e = types.NewError(errGeneral, err.Error(), "")
	if h.Explain != nil {
		e.Details = h.Explain(err)
	}
	var spec *attach.SpecError
	switch {
	case errors.As(err, new(*named.NoNetworkError)):
		e.Code = types.ErrInvalidNetworkConfig
	case errors.As(err, &spec):
		e.Code = types.ErrInvalidNetworkConfig
		if spec.Param == "CONTAINER" {
			e.Code = types.ErrInvalidNetNS
		}
	case errors.As(err, new(*named.PortTakenError)), errors.As(err, new(*named.AddressTakenError)), errors.As(err, new(*attach.TakenError)),
		errors.As(err, new(*named.ConnectedError)):
		e.Code = errInUse
	case errors.Is(err, attach.ErrContainerGone):
		e.Code = types.ErrUnknownContainer
	case errors.Is(err, ErrInput):
		e.Code = types.ErrIOFailure
	case errors.Is(err, context.Canceled):
		e.Code = types.ErrTryAgainLater
	}
	return e
}
