package host

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"
)

// CPU describes the processors and how they are run.
type CPU struct {
	Model       string   `json:"model,omitempty"`
	Online      int      `json:"online"`            // logical CPUs
	Allowed     int      `json:"allowed,omitempty"` // CPUs that this process may run on
	Quota       float64  `json:"quota_cores,omitempty"`
	Sockets     int      `json:"sockets,omitempty"`
	Cores       int      `json:"cores,omitempty"` // physical
	SMT         bool     `json:"smt"`             // cores have more than one thread
	Siblings    [][]int  `json:"siblings,omitempty"`
	SharedL2    [][]int  `json:"shared_l2,omitempty"` // groups of CPUs with one L2 cache
	SharedL3    [][]int  `json:"shared_l3,omitempty"`
	Nodes       [][]int  `json:"numa_nodes,omitempty"`
	Governors   []string `json:"governors,omitempty"` // distinct ones in use
	Driver      string   `json:"frequency_driver,omitempty"`
	Preferences []string `json:"energy_preferences,omitempty"`
	MaxKHz      int64    `json:"max_khz,omitempty"`
	MHz         string   `json:"mhz,omitempty"` // current, of the first CPU
	Boost       string   `json:"boost,omitempty"`
	IdleDriver  string   `json:"idle_driver,omitempty"`
	Isolated    string   `json:"isolated,omitempty"`
	Microcode   string   `json:"microcode,omitempty"`
}

const cpuDir = "sys/devices/system/cpu/"

func cpu(f *files, cpuinfo string) CPU {
	online := parseList(f.read(cpuDir + "online"))
	if online == nil { // no /sys
		for i := range strings.Count("\n"+cpuinfo, "\nprocessor") {
			online = append(online, i)
		}
	}
	c := CPU{
		Model:      model(cpuinfo),
		Online:     len(online),
		Quota:      cpuQuota(f),
		MHz:        field(cpuinfo, "cpu MHz"),
		Microcode:  field(cpuinfo, "microcode"),
		IdleDriver: f.read(cpuDir + "cpuidle/current_driver"),
		Isolated:   f.read(cpuDir + "isolated"),
		Boost:      boost(f),
	}
	packages, cores := map[string]bool{}, map[string]bool{}
	for _, n := range online {
		dir := cpuDir + "cpu" + strconv.Itoa(n) + "/"
		if pkg := f.read(dir + "topology/physical_package_id"); pkg != "" {
			packages[pkg] = true
		}
		if s := f.read(dir + "topology/thread_siblings_list"); s != "" {
			cores[s] = true
		}
		c.Governors = distinct(c.Governors, f.read(dir+"cpufreq/scaling_governor"))
		c.Preferences = distinct(c.Preferences, f.read(dir+"cpufreq/energy_performance_preference"))
		if d := f.read(dir + "cpufreq/scaling_driver"); d != "" {
			c.Driver = d
		}
		if khz, ok := f.number(dir + "cpufreq/cpuinfo_max_freq"); ok {
			c.MaxKHz = max(c.MaxKHz, khz)
		}
	}
	c.Sockets, c.Cores = len(packages), len(cores)
	c.Siblings = groups(f, online, "topology/thread_siblings_list")
	c.SMT = c.Siblings != nil
	c.SharedL2, c.SharedL3 = cacheGroups(f, online, "2"), cacheGroups(f, online, "3")
	for _, node := range f.glob("sys/devices/system/node/node[0-9]*") {
		if cpus := parseList(f.read(node + "/cpulist")); cpus != nil {
			c.Nodes = append(c.Nodes, cpus)
		}
	}
	return c
}

// model returns the CPU's name. ARM kernels report numbers only.
func model(cpuinfo string) string {
	name := cmp.Or(field(cpuinfo, "model name"), field(cpuinfo, "Model"))
	if impl := field(cpuinfo, "CPU implementer"); name == "" && impl != "" {
		return "ARM implementer " + impl + " part " + field(cpuinfo, "CPU part")
	}
	return name
}

// groups returns the distinct lists of more than one CPU in the same file of each CPU.
func groups(f *files, cpus []int, file string) [][]int {
	seen := map[string]bool{}
	var out [][]int
	for _, n := range cpus {
		s := f.read(cpuDir + "cpu" + strconv.Itoa(n) + "/" + file)
		if list := parseList(s); len(list) > 1 && !seen[s] {
			seen[s] = true
			out = append(out, list)
		}
	}
	return out
}

// cacheGroups returns which CPUs share a cache of a level.
func cacheGroups(f *files, cpus []int, level string) [][]int {
	if len(cpus) == 0 {
		return nil
	}
	for _, index := range f.glob(cpuDir + "cpu" + strconv.Itoa(cpus[0]) + "/cache/index*") {
		if f.read(index+"/level") == level && f.read(index+"/type") != "Instruction" {
			return groups(f, cpus, "cache/"+path.Base(index)+"/shared_cpu_list")
		}
	}
	return nil
}

func boost(f *files) string {
	if v := f.read(cpuDir + "intel_pstate/no_turbo"); v != "" {
		return map[string]string{"0": "on", "1": "off"}[v]
	}
	return map[string]string{"0": "off", "1": "on"}[f.read(cpuDir+"cpufreq/boost")]
}

// cpuQuota returns the smallest limit on CPU time, in cores, of this process's cgroups and their
// parents (cgroup v2 cpu.max, v1 cpu.cfs_quota_us), 0 for none.
func cpuQuota(f *files) float64 {
	limit := 0.0
	lower := func(quota, period string) {
		q, err1 := strconv.ParseFloat(quota, 64)
		p, err2 := strconv.ParseFloat(period, 64)
		if err1 == nil && err2 == nil && q > 0 && p > 0 && (limit == 0 || q/p < limit) {
			limit = q / p
		}
	}
	for line := range strings.Lines(f.read("proc/self/cgroup")) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		controllers := strings.Split(parts[1], ",")
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			switch {
			case parts[1] == "":
				if v := strings.Fields(f.read("sys/fs/cgroup" + dir + "/cpu.max")); len(v) == 2 {
					lower(v[0], v[1])
				}
			case slices.Contains(controllers, "cpu"):
				v1 := "sys/fs/cgroup/" + parts[1] + dir
				lower(f.read(v1+"/cpu.cfs_quota_us"), f.read(v1+"/cpu.cfs_period_us"))
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit
}

func distinct(list []string, s string) []string {
	if s == "" || slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// kibibytes returns a value of /proc/meminfo in bytes.
func kibibytes(meminfo, key string) uint64 {
	words := strings.Fields(field(meminfo, key))
	if len(words) == 0 {
		return 0
	}
	n, _ := strconv.ParseUint(words[0], 10, 64)
	return n * 1024
}
