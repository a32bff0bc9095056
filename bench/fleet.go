// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	agentsPerMode = 2                // real ones
	namesPerAgent = 300              // at most
	askedEvery    = 20 * time.Second // one name at a real agent, whose TTL is 5 s
	nameChanges   = 5                // of the name that all agents hold
	resolverUser  = "bench-fleet-resolver"
)

// The modes of real agents.
const (
	localMode   = "local"
	centralMode = "central"
	pushMode    = "push"
)

// A fleetBench is one run of the section fleet.
type fleetBench struct {
	*harness

	opts      options
	address   string // of this machine; the API server takes no loopback address as an endpoint
	cluster   *kubetest.Cluster
	resolvers [2]*fleetProgram
	agents    []*fleetProgram // real ones
	ranked    []*fleetService // by Zipf's law; the first is everyone's
	everyone  *fleetService   // headless, with one endpoint
	added     int             // addresses that changes have used
	report    *fleetReport
}

// A fleetProgram is a resolver or a real agent.
type fleetProgram struct {
	mode, user, command string
	at                  site
	process             *proctest.Process
}

// measureFleet measures agents in each mode, and then a resolver with simulated agents.
func measureFleet(ctx context.Context, opts options, progress io.Writer) (_ report, err error) {
	if opts.nodeCache, err = proctest.LookProgram(opts.nodeCache); err != nil {
		return nil, fmt.Errorf("%w (make build)", err)
	}
	dir, err := os.MkdirTemp("", "dns-bench-")
	if err != nil {
		return nil, fmt.Errorf("creating a folder: %w", err)
	}
	b := &fleetBench{harness: &harness{dir: dir, progress: progress}, opts: opts, report: newFleetReport(opts)}
	defer b.close()
	if b.address, err = machineAddress(); err == nil {
		err = b.launch(ctx)
	}
	if err != nil {
		return nil, err
	}
	defer b.stop()
	for _, part := range []func(context.Context) error{b.fill, b.startAll, b.rest, b.fresh} {
		if err := part(ctx); err != nil {
			return nil, err
		}
	}
	for _, agents := range opts.agents {
		if !slices.Contains(opts.only, pushMode) || b.report.failed != "" {
			break
		}
		if err := b.step(ctx, agents); err != nil { // what was measured before is still worth a page
			b.report.failed = fmt.Sprintf("%s agents: %v", thousands(agents), err)
		}
	}
	return b.report, ctx.Err()
}

// fresh changes a name while all resolvers run.
func (b *fleetBench) fresh(ctx context.Context) error {
	for range nameChanges {
		if err := b.observe(ctx, func(m *fleetMode) *freshness { return &m.fresh }, func() {}); err != nil {
			return err
		}
	}
	return nil
}

// machineAddress returns an IPv4 address of this machine that is not of the loopback device.
func machineAddress() (string, error) {
	addresses, err := net.InterfaceAddrs()
	for _, a := range addresses {
		if network, ok := a.(*net.IPNet); ok && network.IP.To4() != nil && network.IP.IsGlobalUnicast() {
			return network.IP.String(), nil
		}
	}
	return "", cmp.Or(err, errors.New("looking for an IPv4 address: there is only the loopback device's"))
}

// launch starts the cluster and decides where resolvers and agents run.
func (b *fleetBench) launch(ctx context.Context) error {
	state := filepath.Join(b.dir, "cluster")
	if err := os.Mkdir(state, 0o700); err != nil {
		return fmt.Errorf("creating a folder: %w", err)
	}
	for _, mode := range b.opts.only {
		for i := range agentsPerMode {
			b.agents = append(b.agents, &fleetProgram{mode: mode, user: fmt.Sprintf("bench-fleet-%s-%d", mode, i), command: "agent"})
		}
	}
	var err error
	if b.cluster, err = kubetest.Launch(ctx, kubetest.Options{Dir: state, Users: b.users(), Audit: true}); err != nil {
		return err
	}
	for i := range b.resolvers {
		b.resolvers[i] = &fleetProgram{user: resolverUser, command: "resolver"}
	}
	servers := make([]string, 0, len(b.resolvers))
	for _, p := range append(b.resolvers[:], b.agents...) {
		if p.at, err = b.place(ctx, server{name: cmp.Or(p.mode, p.command)}, site{Kubeconfig: b.cluster.Kubeconfig(p.user)}); err != nil {
			break
		}
		if p.command == "resolver" {
			servers = append(servers, net.JoinHostPort(b.address, strconv.Itoa(p.at.Port)))
		}
		if err = b.configure(p, servers); err != nil {
			break
		}
	}
	if err != nil {
		b.cluster.Close()
	}
	return err
}

// configure writes a configuration.
func (b *fleetBench) configure(p *fleetProgram, servers []string) error {
	cluster := map[string]string{
		"":          "{resolver: local, kubeconfig: %q, endpoints: headless}",
		localMode:   "{resolver: local, kubeconfig: %q, endpoints: headless, central: {service: " + eventNamespace + "/resolver}}",
		centralMode: "{resolver: central, kubeconfig: %q, central: {service: " + eventNamespace + "/resolver}}",
		pushMode:    "{resolver: central, kubeconfig: %q, central: {addresses: [" + strings.Join(servers, ", ") + "], push: on}}",
	}[p.mode]
	listen := loopback
	if p.mode == "" {
		listen += ", " + b.address
	}
	p.at.Rest = fmt.Sprintf("listen: {addresses: [%s], port: %d}\ncluster: "+cluster+"\n", listen, p.at.Port, p.at.Kubeconfig)
	if p.mode == "" && slices.Contains(b.opts.only, pushMode) {
		p.at.Rest += fmt.Sprintf("push: {clients: [127.0.0.0/8, %s/32]}\nlimits: {tcpSessions: 16384}\n", b.address)
	}
	frame, err := configs.ReadFile("configs/node-cache-fleet.yaml")
	if err != nil {
		return err
	}
	text, err := p.at.expand(string(frame))
	if err != nil {
		return err
	}
	return os.WriteFile(p.at.Conf, []byte(text), 0o600)
}

// users are those that read the API server.
func (b *fleetBench) users() []string {
	return append(names(b.agents, func(a *fleetProgram) string { return a.user }), resolverUser)
}

// start starts a program, again where it was, and waits until it is ready.
func (b *fleetBench) start(ctx context.Context, p *fleetProgram) (err error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), b.opts.nodeCache, p.command, "--config", p.at.Conf)
	cmd.Dir = p.at.Dir
	if p.process, err = proctest.Launch(p.at.Dir, cmd); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return p.process.Await(ctx, 10*readyPoll, func(ctx context.Context) error { return proctest.Get(ctx, p.page("readyz")) })
}

func (p *fleetProgram) page(path string) string {
	return fmt.Sprintf("http://%s:%d/%s", loopback, p.at.Admin, path)
}

func (b *fleetBench) startAll(ctx context.Context) error {
	for _, p := range append(b.resolvers[:], b.agents...) {
		if err := b.start(ctx, p); err != nil {
			return fmt.Errorf("starting %s: %w", cmp.Or(p.mode, p.command), err)
		}
	}
	return nil
}

// stop ends all programs, paused ones too.
func (b *fleetBench) stop() {
	for _, p := range append(b.resolvers[:], b.agents...) {
		if p.process != nil {
			p.process.Kill()
		}
	}
	b.cluster.Close()
}

// during runs fn. It returns the CPU time that a program used meanwhile, as a share of the time, and its memory then, in MiB.
func (p *fleetProgram) during(fn func() error) (share, size float64, err error) {
	begin := time.Now()
	before, err := proctest.UsageOf(p.process.PID())
	if err == nil {
		err = fn()
	}
	took := time.Since(begin)
	after, err2 := proctest.UsageOf(p.process.PID())
	return (after.CPU - before.CPU).Seconds() / took.Seconds(), float64(after.RSS) / mib, errors.Join(err, err2)
}

// rest measures agents that hold names and are asked for one.
func (b *fleetBench) rest(ctx context.Context) error {
	for _, name := range b.someNames(newSeeded(0), namesPerAgent) {
		if err := b.askAll(ctx, name); err != nil {
			return err
		}
	}
	if err := retry.Sleep(ctx, settleTime); err != nil {
		return err
	}
	begin, asked := time.Now(), 0
	load := func() error {
		during, cancel := context.WithTimeout(ctx, time.Duration(b.opts.seconds)*time.Second)
		defer cancel()
		ask := func() error {
			asked++
			return b.askAll(ctx, b.everyone)
		}
		return errors.Join(ask(), every(during, askedEvery, ask), ctx.Err())
	}
	for _, a := range b.agents {
		load = b.measured(ctx, a, &asked, load)
	}
	if err := load(); err != nil {
		return err
	}
	end := time.Now()
	requests, err := b.cluster.Audit()
	for _, r := range requests {
		i := slices.IndexFunc(b.agents, func(a *fleetProgram) bool { return a.user == r.User })
		if i < 0 || r.Time.After(end) {
			continue
		}
		switch m := b.report.mode(b.agents[i].mode); {
		case r.Time.After(begin):
			m.requests += 1 / end.Sub(begin).Seconds() / agentsPerMode
		case r.Verb == "watch" && r.Code == http.StatusOK:
			m.watches += 1.0 / agentsPerMode
		}
	}
	printf(b.progress, "%s", b.report.modeTable())
	return err
}

// measured returns load with an agent measured around it: its figures are a part of those of its mode.
func (b *fleetBench) measured(ctx context.Context, a *fleetProgram, asked *int, load func() error) func() error {
	return func() error {
		before, err := a.hits(ctx)
		if err != nil {
			return err
		}
		share, size, err := a.during(load)
		if err != nil {
			return err
		}
		after, err := a.hits(ctx)
		m := b.report.mode(a.mode)
		m.ms, m.mib = m.ms+1000*share/agentsPerMode, m.mib+size/agentsPerMode
		m.asked, m.hits = m.asked+*asked, m.hits+int(after-before)
		return err
	}
}

// askAll asks each agent for the address of a name.
func (b *fleetBench) askAll(ctx context.Context, name *fleetService) error {
	for _, a := range b.agents {
		if err := a.ask(ctx, name.dns()); err != nil {
			return fmt.Errorf("%s: %w", a.mode, err)
		}
	}
	return nil
}

// ask asks an agent for the address of a name that exists.
func (p *fleetProgram) ask(ctx context.Context, name string) error {
	client := &dns.Client{Timeout: 5 * time.Second}
	reply, _, err := client.ExchangeContext(ctx, new(dns.Msg).SetQuestion(name, dns.TypeA), net.JoinHostPort(loopback, strconv.Itoa(p.at.Port)))
	if err == nil && reply.Rcode != dns.RcodeSuccess {
		err = fmt.Errorf("%s answered with %s", name, dns.RcodeToString[reply.Rcode])
	}
	return err
}

// hits reads the counter of hits.
func (p *fleetProgram) hits(ctx context.Context) (float64, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, p.page("metrics"), http.NoBody)
	if err != nil {
		return 0, err
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, err
	}
	defer func() { _ = r.Body.Close() }()
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "nodecache_cache_hits_total "); ok {
			return strconv.ParseFloat(text, 64)
		}
	}
	return 0, errors.New("the metrics have no counter of hits")
}

// observe changes the name that all agents hold, right after do, and adds how old the answers of an agent of each mode were meanwhile.
func (b *fleetBench) observe(ctx context.Context, of func(*fleetMode) *freshness, do func()) error {
	w, err := b.watch(ctx)
	defer w.stop()
	if err != nil {
		return err
	}
	do()
	old := b.everyone.address()
	if err := b.change(ctx, b.everyone, b.newAddress(), nil); err != nil {
		return err
	}
	changed := time.Now()
	if err := w.until(ctx, b.everyone.address()); err != nil {
		return err
	}
	w.stop()
	for mode, watcher := range w {
		of(b.report.mode(mode)).add(watcher.answers, old, changed)
	}
	return nil
}

// A fleetWatch asks an agent of each mode for the name that all agents hold, a hundred times a second.
type fleetWatch map[string]*nameWatcher

func (b *fleetBench) watch(ctx context.Context) (fleetWatch, error) {
	w := fleetWatch{}
	for _, a := range b.agents {
		if w[a.mode] == nil {
			watcher, err := startNameWatcher(ctx, b.everyone.dns(), a.at.Port)
			if err != nil {
				return w, err
			}
			w[a.mode] = watcher
		}
	}
	return w, w.until(ctx, b.everyone.address())
}

// until waits until all have an answer some times, whatever they had before.
func (w fleetWatch) until(ctx context.Context, text string) error {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	for _, watcher := range w {
		if err := watcher.until(ctx, 0, text); err != nil {
			return err
		}
	}
	return nil
}

func (w fleetWatch) stop() {
	for _, watcher := range w {
		watcher.stop()
	}
}

// A freshness is how old the answers of an agent were.
type freshness struct {
	oldest []time.Duration // of each change: the time from it to the latest question that got the answer before
	lost   int             // questions without an answer
}

// add judges the answers around a change.
func (f *freshness) add(answers []answer, old string, changed time.Time) {
	var oldest time.Duration
	for _, a := range answers {
		switch a.text {
		case "":
			f.lost++
		case old:
			oldest = max(oldest, a.asked.Sub(changed))
		}
	}
	f.oldest = append(f.oldest, oldest)
}

// worst is the age of the oldest answer, in seconds.
func (f *freshness) worst() float64 {
	return slices.Max(append([]time.Duration{0}, f.oldest...)).Seconds()
}
