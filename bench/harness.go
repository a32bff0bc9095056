// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/proctest"
)

// The one CPU is for the server under test, the other for everything around it.
const (
	serverCPU = 0
	otherCPU  = 1
)

// loopback is the address of every server.
const loopback = "127.0.0.1"

// How long a server may take to end after SIGTERM before it is killed.
const grace = 5 * time.Second

//go:embed floor/floor.c
var floorSource string

// A harness starts servers and puts loads on them.
type harness struct {
	dir       string // removed at the end
	progress  io.Writer
	seconds   int               // of each load
	starts    int               // servers started so far, for the names of their folders
	upstream  *proctest.Process // nil: none
	generator string            // the load generator and its version
}

// newHarness checks what every run needs.
func newHarness(seconds int, progress io.Writer) (*harness, error) {
	if err := needTwoCPUs(); err != nil {
		return nil, err
	}
	if _, err := proctest.LookProgram("dnsperf"); err != nil {
		return nil, fmt.Errorf("looking for the load generator: %w (on Debian: apt-get install dnsperf)", err)
	}
	dir, err := os.MkdirTemp("", "dns-bench-")
	if err != nil {
		return nil, fmt.Errorf("creating a folder: %w", err)
	}
	return &harness{dir: dir, progress: progress, seconds: seconds, generator: "dnsperf"}, nil
}

// needTwoCPUs checks that this program may use both CPUs.
func needTwoCPUs() error {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return fmt.Errorf("reading the affinity: %w", err)
	}
	if !set.IsSet(serverCPU) || !set.IsSet(otherCPU) {
		return fmt.Errorf("pinning: CPUs %d and %d are needed, one for the server and one for the rest", serverCPU, otherCPU)
	}
	return nil
}

func (h *harness) close() { discard(h.dir) }

// discard removes a folder of this run. One that stays behind changes no figure.
func discard(dir string) { _ = os.RemoveAll(dir) }

// A server is a program under test.
type server struct {
	name   string
	path   string // of the program
	config string // file in folder configs; empty: it takes flags only
	args   string // its command line without the program, a template of a site
}

// A site is where one start of a server happens.
type site struct {
	Dir        string // its folder, empty at the start
	Conf       string // path of its configuration
	Port       int    // for queries
	Admin      int    // for readiness or metrics
	Upstream   int    // port of the upstream
	OverTCP    bool   // the upstream is asked over TCP
	Kubeconfig string // leads to the API server through a proxy
	Endpoints  string // cluster.endpoints
	Rest       string // of the configuration
}

// place completes the site of one start and writes the configuration. The folder is a new one each time: a cache kept on
// disk would turn a later round's misses into hits.
func (h *harness) place(ctx context.Context, s server, at site) (site, error) {
	h.starts++
	at.Dir = filepath.Join(h.dir, fmt.Sprintf("%s-%d", s.name, h.starts))
	at.Conf = filepath.Join(at.Dir, "conf")
	for _, port := range []*int{&at.Port, &at.Admin} {
		addr, err := proctest.ReservePort(ctx)
		if err != nil {
			return site{}, err
		}
		*port = int(addr.Port())
	}
	if err := os.Mkdir(at.Dir, 0o700); err != nil {
		return site{}, fmt.Errorf("creating a folder: %w", err)
	}
	if s.config == "" {
		return at, nil
	}
	text, err := configs.ReadFile("configs/" + s.config)
	if err != nil {
		return site{}, err
	}
	config, err := at.expand(string(text))
	if err == nil {
		err = os.WriteFile(at.Conf, []byte(config), 0o600)
	}
	if err != nil {
		return site{}, fmt.Errorf("writing a configuration: %w", err)
	}
	return at, nil
}

// start runs a server on its CPU. The caller stops it.
func (h *harness) start(ctx context.Context, s server, at site) (*proctest.Process, error) {
	args, err := at.expand(s.args)
	if err != nil {
		return nil, err
	}
	return launch(ctx, serverCPU, at.Dir, s.name, append([]string{s.path}, strings.Fields(args)...))
}

// launch runs a program on one CPU from its first instruction on: Go sets GOMAXPROCS by it.
func launch(ctx context.Context, cpu int, dir, name string, argv []string) (*proctest.Process, error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "taskset", append([]string{"-c", fmt.Sprint(cpu)}, argv...)...)
	cmd.Dir = dir
	return proctest.Launch(name, cmd)
}

// ended returns an error with the last line of a program that has ended.
func ended(p *proctest.Process) error {
	if !p.Ended() {
		return nil
	}
	return fmt.Errorf("ended: %s", cmp.Or(lastLine(p.Tail(1)), "no output"))
}

// lastLine is the last line of text, cut to what fits into a table.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	line := []rune(strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:]))
	if len(line) > 160 {
		line = append(line[:160], '…')
	}
	return string(line)
}

// compile builds a C program that this binary carries.
func (h *harness) compile(ctx context.Context, name, source string, flags ...string) (string, error) {
	file, path := filepath.Join(h.dir, name+".c"), filepath.Join(h.dir, name)
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		return "", fmt.Errorf("writing the source of %s: %w", name, err)
	}
	args := append([]string{"-O2", "-o", path, file}, flags...)
	if text, err := exec.CommandContext(ctx, "cc", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w: %s", name, err, lastLine(string(text)))
	}
	return path, nil
}

// A load is one way to query: which list, by which transport, and what every answer has to be.
type load struct {
	name    string // on the command line and in files
	title   string // in the report
	list    string // file of queries in the run's folder
	rcode   string // of a right answer
	tcp     bool
	once    bool // a query asked twice would spoil the load
	overTCP bool // of servers that ask their upstream over TCP
}

// runLoad runs one load and takes its sample.
func (h *harness) runLoad(ctx context.Context, p *proctest.Process, l load, port int) (sample, error) {
	before, _, err := h.clocks(p)
	if err != nil {
		return sample{}, err
	}
	got, err := dnsperfRun{list: filepath.Join(h.dir, l.list), port: port, seconds: h.seconds, tcp: l.tcp}.run(ctx)
	if err != nil {
		return sample{}, err
	}
	after, used, err := h.clocks(p)
	if err != nil {
		return sample{}, err
	}
	h.generator = "dnsperf " + got.version
	if l.once && got.completed+got.lost >= int64(missLines(h.seconds)) {
		return sample{}, errors.New("the list of new names was too short for this server")
	}
	s, err := newSample(got, after.server-before.server, float64(used.RSS)/mib, l.rcode)
	s.Others = after.othersSince(before, got.cpu)
	return s, err
}

const mib = 1 << 20

// clocks is the CPU time that was used up to one moment.
type clocks struct {
	server   time.Duration // by the server under test
	upstream time.Duration
	busy     time.Duration // by all programs, on all CPUs, time stolen by a hypervisor included
	all      time.Duration // busy or idle
}

// clocks reads the CPU time of the server, the upstream and the machine, and what else the server uses.
func (h *harness) clocks(p *proctest.Process) (clocks, proctest.Usage, error) {
	used, err := proctest.UsageOf(p.PID())
	c := clocks{server: used.CPU}
	if h.upstream != nil && err == nil {
		var upstream proctest.Usage
		upstream, err = proctest.UsageOf(h.upstream.PID())
		c.upstream = upstream.CPU
	}
	if err != nil {
		return clocks{}, proctest.Usage{}, err
	}
	c.busy, c.all, err = proctest.MachineTime()
	return c, used, err
}

// othersSince is the share of all CPU time since before that went to neither server, upstream nor load generator.
//
// The kernel counts the machine's time and a process's by different means: the difference is good to a few percent.
func (c clocks) othersSince(before clocks, generator time.Duration) float64 {
	all := c.all - before.all
	if all <= 0 {
		return 0
	}
	ours := c.server - before.server + c.upstream - before.upstream + generator
	return max(0, float64(c.busy-before.busy-ours)/float64(all))
}

// A machine is where a run happened. A fact that the system does not give is "unknown".
type machine struct {
	CPU       string
	Cores     int
	Virtual   bool
	Kernel    string
	System    string
	LoadStart string // over one minute
	Go        string // that built this program and CoreDNS
	Upstream  string
	Generator string
}

func describeMachine() machine {
	m := machine{CPU: "unknown", Cores: runtime.NumCPU(), Kernel: "unknown", System: "unknown", LoadStart: "unknown", Go: runtime.Version(), Generator: "dnsperf"}
	system, err := procfs.NewDefaultFS()
	if err != nil {
		return m
	}
	if cpus, err := system.CPUInfo(); err == nil && len(cpus) > 0 {
		m.CPU, m.Cores = cpus[0].ModelName, len(cpus)
		m.Virtual = strings.Contains(strings.Join(cpus[0].Flags, " "), "hypervisor")
	}
	if average, err := system.LoadAvg(); err == nil {
		m.LoadStart = fmt.Sprintf("%.2f", average.Load1)
	}
	release, _ := os.ReadFile("/etc/os-release")
	for line := range strings.Lines(string(release)) {
		if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			m.System = strings.Trim(name, "\"\n")
		}
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:]) + " " + unix.ByteSliceToString(name.Machine[:])
	}
	return m
}
