package arch

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The floors, lowest first.
const (
	facts = iota
	hands
	brains
	faces
	door
	tools // programs of the build: nobody's rooms, they import nothing of ours
)

// room is one package of the picture.
type room struct {
	floor   int
	imports []string // arrows to rooms that are not facts
}

// rooms is the picture in the package comment as data.
var rooms = map[string]room{
	"cmd/cleat-cni":  {door, []string{"compat/netavark/args", "network/keep/client"}},
	"cmd/cleat-node": {door, []string{"cli/networks", "cli/node", "fastpath", "overlay", "overlay/control", "overlay/registry", "network/attach", "network/bgp", "network/firewall", "network/keep", "network/named", "network/names", "network/span", "network/span/guard", "network/span/probe", "network/why", "tunnel/control", "tunnel/secure", "tunnel/spec", "link", "netns"}},
	"cmd/cleat":      {door, []string{"cli", "compat", "lab", "mptcp", "mptcp/upgrade", "sandbox"}},

	"cli": {faces, []string{
		"cli/attach", "cli/bench", "cli/complete", "cli/container", "cli/ctl", "cli/doctor", "cli/exit", "cli/graph", "cli/help", "cli/hint",
		"cli/keep", "cli/man", "cli/mptcp", "cli/networks", "cli/run", "cli/traffic", "cli/tunnel", "compat", "link", "network/attach", "network/keep/client",
	}},
	"cli/attach":        {faces, []string{"cli/complete", "cli/container", "cli/help", "cli/hint", "cli/term", "link", "netns/find", "network/attach", "network/dhcp", "network/keep"}},
	"cli/bench":         {faces, []string{"bench", "bench/catalog", "bench/cell", "bench/experiment", "bench/remote", "bench/remote/agent", "bench/report", "bench/summary", "cli/complete", "cli/container", "cli/exit", "cli/help", "cli/hint", "cli/term", "lab", "netns", "traffic"}},
	"cli/complete":      {faces, []string{"cli/hint"}},
	"cli/container":     {faces, []string{"cli/hint", "netns", "netns/find", "network/attach", "network/survey"}},
	"cli/ctl":           {faces, []string{"cli/complete", "cli/hint", "cli/run", "cli/term", "policy", "sandbox/control"}},
	"cli/doctor":        {faces, []string{"bench/host", "cli/container", "cli/term", "network/trace"}},
	"cli/exit":          {faces, []string{"bench/experiment", "cli/hint", "lab", "netns/find"}},
	"cli/graph":         {faces, []string{"cli/container", "cli/hint", "cli/term", "netns/find", "network/graph", "network/named", "network/survey"}},
	"cli/help":          {faces, []string{"cli/hint"}},
	"cli/hint":          {faces, nil},
	"cli/keep":          {faces, []string{"compat", "compat/docker", "cli/hint", "netns", "network/keep/client", "cli/attach", "cli/container", "cli/exit", "cli/help", "cli/term", "cli/networks", "netns/find", "network/attach", "network/keep", "network/named"}},
	"cli/man":           {faces, []string{"cli/help", "cli/term"}},
	"cli/mptcp":         {faces, []string{"cli/complete", "cli/container", "cli/exit", "cli/help", "cli/hint", "cli/run", "cli/term", "link", "mptcp", "mptcp/upgrade", "netns"}},
	"cli/networks":      {faces, []string{"cli/attach", "cli/container", "cli/exit", "cli/help", "cli/hint", "cli/term", "link", "netns/find", "network/attach", "network/ipam", "network/keep", "network/named", "network/names", "network/why", "overlay/control"}},
	"cli/node":          {faces, []string{"cli/complete", "cli/exit", "cli/help", "cli/hint", "cli/man", "cli/term", "network/attach", "network/bgp", "network/keep", "overlay", "overlay/control", "overlay/registry", "overlay/trust", "overlay/ui"}},
	"cli/run":           {faces, []string{"cli/complete", "cli/exit", "cli/help", "cli/hint", "cli/term", "policy", "sandbox", "sandbox/control"}},
	"cli/term":          {faces, nil},
	"cli/term/termtest": {faces, nil},
	"cli/traffic":       {faces, []string{"cli/hint", "cli/term", "traffic"}},
	"cli/tunnel":        {faces, []string{"cli/complete", "cli/exit", "cli/hint", "cli/term", "internal/seal", "link", "tunnel", "tunnel/control", "tunnel/endpoint", "tunnel/secure", "tunnel/spec"}},

	"compat":               {faces, []string{"cli/container", "cli/exit", "cli/hint", "cli/networks", "network/keep/client", "network/named", "compat/cni", "compat/netavark", "compat/netavark/args", "compat/pasta", "compat/pipework", "compat/slirp4netns", "network/keep"}},
	"compat/pasta":         {faces, []string{"compat/getopt", "compat/journal", "compat/portspec", "sandbox", "dns"}},
	"compat/slirp4netns":   {faces, []string{"compat/getopt", "compat/journal", "sandbox"}},
	"compat/pipework":      {faces, []string{"compat/journal", "network/attach", "network/dhcp", "link", "netns"}},
	"compat/cni":           {faces, []string{"network/attach", "network/named", "network/resolvconf", "link", "netns", "netns/find"}},
	"compat/netavark":      {faces, []string{"compat/netavark/args", "network/attach", "network/ipam", "network/named", "link", "netns", "netns/find"}},
	"compat/netavark/args": {faces, nil},
	"compat/getopt":        {faces, nil},
	"compat/journal":       {faces, nil},
	"compat/portspec":      {faces, nil},
	"compat/docker":        {faces, []string{"network/attach", "network/ipam", "network/named", "network/resolvconf", "link", "netns"}},

	"doc/examples":          {door, nil},
	"doc/examples/minimal":  {door, []string{"sandbox"}},
	"doc/examples/firewall": {door, []string{"sandbox"}},
	"doc/examples/socks5":   {door, []string{"sandbox"}},

	"bench": {brains, []string{
		"bench/attacher", "bench/catalog", "bench/cell", "bench/container", "bench/experiment", "bench/host", "bench/multipath", "bench/remote", "bench/schedule", "bench/spanned", "bench/stats", "bench/wiring",
		"lab", "link", "netns", "traffic",
	}},
	"bench/experiment":   {brains, []string{"bench/catalog", "bench/cell", "bench/multipath"}},
	"bench/multipath":    {brains, nil},
	"bench/schedule":     {brains, nil},
	"bench/wiring":       {brains, []string{"bench/catalog", "bench/cell", "bench/container", "bench/multipath", "bench/named", "bench/spanned", "lab", "link", "netns"}},
	"bench/remote":       {brains, []string{"bench/cell", "bench/wiring", "lab", "link"}},
	"bench/remote/agent": {brains, []string{"bench/cell", "bench/host", "bench/remote", "bench/wiring", "lab", "netns"}},
	"bench/container":    {brains, []string{"bench/cell", "lab", "link"}},
	"bench/attacher":     {brains, []string{"bench/catalog", "bench/container", "bench/named", "bench/spanned", "lab", "link", "netns"}},
	"bench/benchtest":    {brains, nil},
	"bench/spanned":      {brains, []string{"bench/container", "bench/named", "lab", "link", "netns"}},
	"bench/named":        {brains, []string{"bench/container", "lab", "link", "netns"}},
	"bench/host":         {brains, []string{"bench/cell"}},
	"bench/summary":      {brains, []string{"bench/stats", "bench/catalog", "bench/cell"}},
	"bench/stats":        {brains, []string{"bench/cell"}},
	"bench/report":       {brains, []string{"bench/stats", "bench/summary", "bench/catalog", "bench/cell", "bench/multipath"}},
	"bench/catalog":      {brains, nil},
	"bench/cell":         {brains, nil},
	"mptcp":              {brains, []string{"link", "netns"}},
	"mptcp/upgrade":      {hands, []string{"netns"}},
	"network/attach":     {brains, []string{"network/journal", "network/announce", "network/dhcp", "network/segment", "network/qdisc", "network/resolvconf", "network/rules", "link", "netns"}},
	"network/keep":       {brains, []string{"network/attach", "network/keep/client", "netns", "netns/find"}},
	"network/named":      {brains, []string{"network/attach", "network/firewall", "network/ipam", "network/journal", "network/names", "network/resolvconf", "fastpath", "policy", "link", "netns", "netns/find"}},
	"network/ipam":       {brains, nil},
	"network/journal":    {hands, nil},
	"network/survey":     {brains, []string{"netns"}},
	"network/graph":      {brains, []string{"network/survey"}},
	"network/trace":      {brains, []string{"network/survey", "netns"}},
	"network/span":       {hands, []string{"link", "netns"}},
	"network/bgp":        {hands, []string{"link", "netns"}},
	"network/span/guard": {hands, []string{"link", "netns"}},
	"network/span/probe": {hands, []string{"link", "netns"}},
	"overlay":            {brains, []string{"overlay/control", "overlay/gate", "overlay/member", "overlay/registry", "overlay/trust"}},
	"overlay/control":    {hands, nil},
	"overlay/gate":       {hands, []string{"overlay/trust"}},
	"overlay/member":     {hands, []string{"overlay/gate", "overlay/registry"}},
	"overlay/registry":   {hands, nil},
	"overlay/trust":      {hands, nil},
	"overlay/ui":         {hands, []string{"overlay/control"}},
	"network/why":        {brains, []string{"network/attach", "network/named", "network/names", "network/segment", "network/survey", "network/trace", "link", "netns", "netns/files", "netns/find"}},
	"sandbox":            {brains, []string{"usernet", "usernet/lan", "dns", "policy", "sandbox/supervisor", "internal/seal"}},
	"sandbox/control":    {brains, []string{"usernet"}},
	"sandbox/supervisor": {hands, nil},

	"policy":              {hands, []string{"usernet"}},
	"dns":                 {hands, nil},
	"fastpath":            {hands, []string{"link"}},
	"fastpath/multipath":  {hands, []string{"fastpath"}},
	"lab":                 {hands, []string{"link", "netns"}},
	"lab/labtest":         {hands, []string{"lab", "link", "netns"}},
	"lab/vm":              {hands, nil},
	"link":                {hands, []string{"netns"}},
	"netns":               {hands, nil},
	"netns/find":          {hands, []string{"netns"}},
	"netns/files":         {hands, []string{"netns"}},
	"traffic":             {hands, nil},
	"tunnel":              {hands, []string{"tunnel/order", "tunnel/sched", "tunnel/secure", "tunnel/wire"}},
	"tunnel/order":        {hands, nil},
	"tunnel/sched":        {hands, nil},
	"tunnel/wire":         {hands, []string{"tunnel/sched"}},
	"tunnel/endpoint":     {hands, []string{"tunnel", "tunnel/sched", "tunnel/spec", "tunnel/wire", "fastpath/multipath", "link", "netns", "internal/seal"}},
	"tunnel/secure":       {hands, nil},
	"internal/seal":       {hands, nil},
	"usernet":             {hands, []string{"usernet/lan"}},
	"usernet/lan":         {hands, nil},
	"usernet/usernettest": {hands, []string{"lab", "link", "netns"}},
	"usernet/guesttest":   {hands, nil},
	"tunnel/spec":         {hands, []string{"tunnel/secure"}},
	"tunnel/control":      {hands, []string{"tunnel", "tunnel/spec"}},
	"tunnel/tunneltest":   {hands, []string{"tunnel"}},

	"network/keep/client":         {hands, nil},
	"network/segment":             {hands, []string{"link", "netns"}},
	"network/segment/segmenttest": {hands, []string{"lab", "link", "netns", "network/segment"}},
	"network/announce":            {hands, []string{"network/segment", "link"}},
	"network/dhcp":                {hands, []string{"network/segment", "network/announce", "link"}},
	"network/dhcp/dhcptest":       {hands, nil},
	"network/qdisc":               {hands, []string{"netns"}},
	"network/resolvconf":          {hands, []string{"netns", "netns/files"}},
	"network/rules":               {hands, []string{"netns"}},
	"network/firewall":            {hands, []string{"link", "netns"}},
	"network/names":               {hands, []string{"dns", "internal/seal"}},
	"network/networktest":         {hands, []string{"link", "netns"}},

	"packet":               {facts, nil},
	"internal/sys":         {facts, nil},
	"internal/sys/systest": {facts, nil},
	"internal/spell":       {facts, nil},
	"internal/yamlfile":    {facts, nil},
	"internal/rate":        {facts, nil},
	"internal/localsock":   {facts, nil},
	"internal/nlsock":      {facts, nil},
	"internal/statedir":    {facts, nil},
	"internal/atomicfile":  {facts, nil},
	"internal/buildinfo":   {facts, nil},
	"internal/columns":     {facts, nil},
	"internal/look":        {facts, nil},
	"internal/program":     {facts, nil},
	"internal/procstat":    {facts, nil},
	"internal/ledger":      {facts, nil},
	"internal/linkzoo":     {facts, nil},
	"internal/dnsname":     {facts, nil},

	"internal/arch":  {tools, nil},
	"compat/engines": {tools, nil},
	"packaging":      {tools, nil},
}

// never are rooms, here or yet to come, that bench must not know: it runs them
// by command line, as it runs their rivals.
var never = []string{"usernet", "tunnel", "sandbox", "policy", "dns", "compat", "cli"}

const module = "cleat"

// listed is what `go list -json` tells about a package.
type listed struct {
	ImportPath, Dir, Name              string
	Imports, TestImports, XTestImports []string
	Deps                               []string
	CgoFiles, SFiles, CFiles           []string
}

// list is every package of the module by its path below it.
func list(t *testing.T) map[string]listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json", "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	all := map[string]listed{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[below(p.ImportPath)] = p
	}
}

// below is an import path without the module, or "" for one of another module.
func below(importPath string) string {
	rest, ok := strings.CutPrefix(importPath, module+"/")
	if !ok {
		return ""
	}
	return rest
}

// ours are the rooms among imports.
func ours(imports []string) []string {
	var in []string
	for _, i := range imports {
		if r := below(i); r != "" {
			in = append(in, r)
		}
	}
	return in
}

func TestEveryPackageIsInThePicture(t *testing.T) {
	found := list(t)
	for name := range found {
		if _, ok := rooms[name]; !ok {
			t.Errorf("package %s is not in the picture", name)
		}
	}
	for name := range rooms {
		if _, ok := found[name]; !ok {
			t.Errorf("the picture has a room %s that does not exist", name)
		}
	}
}

func TestTheCommentDrawsEveryRoom(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	drawn := map[string]bool{}
	for line := range strings.Lines(f.Doc.Text()) {
		for _, word := range strings.Fields(line)[:min(2, len(strings.Fields(line)))] {
			drawn[word] = true
		}
	}
	for name, r := range rooms {
		if r.floor != tools && !drawn[name] && !drawn[path.Base(name)] {
			t.Errorf("the comment does not draw %s", name)
		}
	}
}

func TestThePictureGoesDown(t *testing.T) {
	for name, r := range rooms {
		for _, to := range r.imports {
			if rooms[to].floor > r.floor {
				t.Errorf("the arrow %s → %s goes up", name, to)
			}
		}
	}
}

func TestImportsFollowTheArrows(t *testing.T) {
	for name, p := range list(t) {
		for _, to := range ours(p.Imports) {
			if rooms[to].floor != facts && !slices.Contains(rooms[name].imports, to) {
				t.Errorf("%s imports %s: no such arrow is drawn", name, to)
			}
		}
		for _, to := range ours(slices.Concat(p.TestImports, p.XTestImports)) {
			fromOutside := to == "lab" && !slices.Contains(p.TestImports, module+"/lab")
			if !fromOutside && rooms[to].floor > rooms[name].floor {
				t.Errorf("the tests of %s import %s, which is above it", name, to)
			}
		}
		if rooms[name].floor == facts && len(ours(p.Imports)) > 0 {
			t.Errorf("%s imports %v: facts import nothing of ours", name, ours(p.Imports))
		}
	}
}

func TestNoArrowIsDrawnInVain(t *testing.T) {
	for name, p := range list(t) {
		for _, to := range rooms[name].imports {
			if !slices.Contains(ours(p.Imports), to) {
				t.Errorf("the arrow %s → %s is drawn, but there is no such import", name, to)
			}
		}
	}
}

func TestBenchRunsDataPathsByCommandLine(t *testing.T) {
	for name, p := range list(t) {
		if name != "bench" && !strings.HasPrefix(name, "bench/") {
			continue
		}
		for _, to := range ours(p.Deps) {
			first, _, _ := strings.Cut(to, "/")
			if slices.Contains(never, first) {
				t.Errorf("%s depends on %s", name, to)
			}
		}
	}
}

// nearTheKernel reports whether a room may make raw system calls.
func nearTheKernel(room string) bool {
	return room == "internal/sys" || room == "internal/sys/systest"
}

func TestUnsafeIsOnlyInSys(t *testing.T) {
	for name, p := range list(t) {
		if !nearTheKernel(name) && slices.Contains(slices.Concat(p.Imports, p.TestImports, p.XTestImports), "unsafe") {
			t.Errorf("%s imports unsafe", name)
		}
		if len(p.CgoFiles)+len(p.CFiles) > 0 {
			t.Errorf("%s has C", name)
		}
		if len(p.SFiles) > 0 {
			t.Errorf("%s has assembly", name)
		}
	}
}

func TestPackageNames(t *testing.T) {
	vague := []string{"pkg", "util", "utils", "common", "helper", "helpers", "types", "misc", "base", "shared"}
	for name := range list(t) {
		for part := range strings.SplitSeq(name, "/") {
			if slices.Contains(vague, part) {
				t.Errorf("package %s: %q says nothing", name, part)
			}
		}
	}
}

// raw are functions that only internal/sys may call.
var raw = []string{"Syscall", "Syscall6", "RawSyscall", "RawSyscall6", "SyscallNoError", "RawSyscallNoError"}

// fatal are functions of package log that only cmd, and programs to be copied,
// may call.
var fatal = []string{"Fatal", "Fatalf", "Fatalln"}

func TestManners(t *testing.T) {
	eachFile(t, func(name string, f *ast.File, pos func(ast.Node) string) {
		room := path.Dir(name)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil && n.Name.Name == "init" {
					t.Errorf("%s: init runs before anyone asked for it", pos(n))
				}
			case *ast.SelectorExpr:
				from, ok := n.X.(*ast.Ident)
				if !ok {
					return true
				}
				switch {
				case (from.Name == "unix" || from.Name == "syscall") && slices.Contains(raw, n.Sel.Name) && !nearTheKernel(room):
					t.Errorf("%s: raw system calls are made in internal/sys", pos(n))
				case from.Name == "log" && slices.Contains(fatal, n.Sel.Name) && !strings.HasPrefix(room, "cmd/") && !strings.HasPrefix(room, "doc/examples/"):
					t.Errorf("%s: below cmd, an error is returned", pos(n))
				}
			}
			return true
		})
	})
}

// runsCommands reports whether a room runs commands that the user names, which the
// user's own PATH decides.
func runsCommands(room string) bool {
	return room == "cli/run" || room == "compat/pasta"
}

// TestProgramsAreFoundAlike checks that the programs of others are looked for by
// package program: exec.LookPath misses those of administrators under an ordinary
// user's PATH.
func TestProgramsAreFoundAlike(t *testing.T) {
	eachFile(t, func(name string, f *ast.File, pos func(ast.Node) string) {
		room := path.Dir(name)
		if room == "internal/program" || runsCommands(room) || strings.HasSuffix(name, "_test.go") {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "LookPath" {
				t.Errorf("%s: use program.Find", pos(n))
			}
			return true
		})
	})
}

// eachFile parses every Go file of the module and calls f with its path below
// the module.
func eachFile(t *testing.T, f func(name string, file *ast.File, pos func(ast.Node) string)) {
	t.Helper()
	root := os.DirFS("../..")
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "out") {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(name) != ".go" {
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, filepath.Join("../..", name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		f(name, file, func(n ast.Node) string {
			p := files.Position(n.Pos())
			return name + ":" + strings.TrimPrefix(p.String(), p.Filename+":")
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNamedTestsExist checks that documents, the Makefile and the vm tier name tests that
// exist: `go test -run` of others runs nothing, and succeeds.
func TestNamedTestsExist(t *testing.T) {
	exists := map[string]bool{}
	eachFile(t, func(name string, f *ast.File, _ func(ast.Node) string) {
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && strings.HasSuffix(name, "_test.go") {
				exists[d.Name.Name] = true
			}
		}
	})
	var files []string
	for _, pattern := range []string{"*.md", "doc/*.md", "doc/*/*.md", "Makefile", ".ci/run", "lab/vm/*_test.go"} {
		matches, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, matches...)
	}
	word := regexp.MustCompile(`\b(Test|Fuzz|Benchmark)[A-Z]\w*`)
	for _, name := range files {
		if filepath.Base(name) == "outcome_test.go" {
			continue // its names are made up
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range word.FindAllString(string(text), -1) {
			if !exists[test] {
				t.Errorf("%s: there is no %s", strings.TrimPrefix(name, "../../"), test)
			}
		}
	}
}
