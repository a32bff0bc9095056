// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/netif"
	"github.com/nodecache/node-cache/pkg/node"
)

// A fakeHost is a node in memory whose journal lists what was done to it, in order.
type fakeHost struct {
	kernel   *intercepttest.Fake
	others   map[string]*intercepttest.Fake // the kernel as the backends other than the agent's see it
	found    dataplane.Found
	lacks    []string
	setupErr error
	linkErr  error // of Remove
	testDial func(context.Context, string, netip.AddrPort, uint32) (net.Conn, error)

	mu        sync.Mutex // guards what follows
	journal   []string
	held      []netip.Addr
	closed    int               // times that a backend was closed
	do        map[string]func() // when a line is written, once
	waitUntil time.Time         // until when rules are to wait for the lease; zero: not at all
	written   time.Time         // of the first rules
}

func newFakeHost() *fakeHost {
	return &fakeHost{
		kernel: intercepttest.NewFake(time.Now), do: map[string]func(){},
		found: dataplane.Found{Proxy: dataplane.NFTables, Backend: dataplane.BackendNFTables, Reason: "set by the test"},
	}
}

func (h *fakeHost) note(line string) {
	h.mu.Lock()
	if !slices.Contains(h.journal, line) { // renewals and looks repeat
		h.journal = append(h.journal, line)
	}
	do := h.do[line]
	delete(h.do, line)
	h.mu.Unlock()
	if do != nil {
		do()
	}
}

func (h *fakeHost) lines() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.journal)
}

// lateLease reports whether the first rules were written after their wait for the lease had timed out.
func (h *fakeHost) lateLease() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.waitUntil.IsZero() && !h.written.Before(h.waitUntil)
}

func (h *fakeHost) MissingCapabilities() []string { return h.lacks }

func (h *fakeHost) DetectDataPlane(context.Context) (dataplane.Found, error) { return h.found, nil }

func (h *fakeHost) OnCilium() (bool, error) { return h.found.Proxy == dataplane.Cilium, nil }

func (h *fakeHost) CiliumLocal([]netip.Addr) (map[netip.Addr]bool, error) {
	return nil, errors.ErrUnsupported
}

func (h *fakeHost) OpenBackend(name string, _ *slog.Logger) (intercept.Backend, error) {
	if f := h.others[name]; f != nil {
		return f.Open(), nil
	}
	return &notedBackend{h.kernel.Open(), h}, nil
}

func (h *fakeHost) MayHaveRules(name string) bool { return h.others[name] != nil }

func (h *fakeHost) NewLink(c netif.Config) (node.Link, error) { return &fakeLink{h, c}, nil }

func (*fakeHost) Scopes() (map[netip.Addr]bool, error) { return nil, errors.ErrUnsupported }

func (*fakeHost) Policies() ([]string, error) { return nil, nil }

func (*fakeHost) Notracks(dataplane.Flows) ([]dataplane.Notrack, error) { return nil, nil }

func (h *fakeHost) SelfQueryDialer() func(context.Context, string, netip.AddrPort) (net.Conn, error) {
	return func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr.String())
	}
}

func (h *fakeHost) TestDialer() func(context.Context, string, netip.AddrPort, uint32) (net.Conn, error) {
	return h.testDial
}

// A notedBackend is a backend whose calls are in the journal.
type notedBackend struct {
	intercept.Backend
	m *fakeHost
}

func (b *notedBackend) Prepare(ctx context.Context, r rules.Rules) error {
	b.m.mu.Lock()
	b.m.waitUntil, _ = ctx.Deadline()
	b.m.mu.Unlock()
	return b.Backend.Prepare(ctx, r)
}

func (b *notedBackend) Apply(ctx context.Context, r rules.Rules) (bool, error) {
	b.m.mu.Lock()
	if b.m.written.IsZero() {
		b.m.written = time.Now()
	}
	b.m.mu.Unlock()
	b.m.note("rules")
	return b.Backend.Apply(ctx, r)
}

func (b *notedBackend) Renew(ctx context.Context, keys []netip.Addr, d time.Duration) error {
	err := b.Backend.Renew(ctx, keys, d)
	if err == nil {
		b.m.note("lease")
	}
	return err
}

func (b *notedBackend) Release(ctx context.Context, keys []netip.Addr, drain time.Duration) error {
	err := b.Backend.Release(ctx, keys, drain)
	b.m.note("released")
	return err
}

func (b *notedBackend) Remove(ctx context.Context, owner string) error {
	b.m.note("rules removed")
	return b.Backend.Remove(ctx, owner)
}

func (b *notedBackend) Close() error {
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	b.m.closed++
	return b.Backend.Close()
}

// A fakeLink keeps the addresses in the machine.
type fakeLink struct {
	m *fakeHost
	c netif.Config
}

func (l *fakeLink) Setup(context.Context) error {
	l.m.note("link")
	if l.m.setupErr == nil {
		l.m.mu.Lock()
		defer l.m.mu.Unlock()
		l.m.held = l.c.Addresses
	}
	return l.m.setupErr
}

func (l *fakeLink) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (l *fakeLink) Remove(context.Context) error {
	l.m.note("link removed")
	return l.m.linkErr
}

func (l *fakeLink) Stats() netif.Stats {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	return netif.Stats{Kind: "dummy", Held: l.m.held}
}

// nodeConfig manages all of a node, at a port of 127.0.0.1.
func nodeConfig(t *testing.T) config.Config {
	t.Helper()
	cfg := config.Default(config.Agent)
	cfg.Listen.Port = proctest.FreeAddr(t).Port()
	cfg.Forward = []config.Route{config.DefaultRoute(".", config.Target{Addr: netip.MustParseAddrPort("192.0.2.1:53")})}
	cfg.Admin = config.Admin{}
	cfg.Identity.Version = "under test"
	cfg.Interface.Manage, cfg.Intercept.Manage = true, true
	cfg.Intercept.Fallback = config.Fallback{Addresses: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:53")}}
	return cfg
}

// agentOnHost makes an agent of cfg on m. Its Run has not begun.
func agentOnHost(t *testing.T, m *fakeHost, cfg config.Config) *Agent {
	t.Helper()
	a, err := newAgent(t.Context(), m, Options{Config: &cfg, Log: t.Output()})
	assert.NoError(t, err)
	return a
}

// runNode runs the agent. Stop ends it and returns what Run did.
func runNode(t *testing.T, a *Agent) (stop func() error) {
	t.Helper()
	assert.NoError(t, a.Listen(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// serveOnHost runs an agent of cfg on m and waits until it is ready.
func serveOnHost(t *testing.T, m *fakeHost, cfg config.Config) (a *Agent, stop func() error) {
	t.Helper()
	a = agentOnHost(t, m, cfg)
	stop = runNode(t, a)
	until(t, "the agent is ready", func() bool { return a.notReady() == nil })
	return a, stop
}

func reload(t *testing.T, a *Agent, cfg config.Config) {
	t.Helper()
	if _, err := a.Reload(cfg, nil); err != nil {
		t.Fatal(err)
	}
}

// until waits for a condition.
func until(t *testing.T, what string, reached func() bool) {
	t.Helper()
	for start := time.Now(); !reached(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > 15*time.Second {
			t.Fatalf("not within 15 s: %s", what)
		}
	}
}

// answers asks the agent over UDP.
func answers(t *testing.T, a *Agent) bool {
	t.Helper()
	q := new(dns.Msg)
	q.SetQuestion("version.bind.", dns.TypeTXT)
	q.Question[0].Qclass = dns.ClassCHAOS
	r, _, err := (&dns.Client{Timeout: time.Second}).Exchange(q, a.Addrs()[0].String())
	return err == nil && r.Rcode == dns.RcodeSuccess
}

func TestNodeOrder(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		onExit string
		want   []string
		rules  bool // that stay
	}{
		{
			name: "the fallback stays", onExit: config.ExitAuto, rules: true,
			want: []string{"link", "rules", "lease", "released"},
		},
		{
			name: "all goes", onExit: config.ExitRemove,
			want: []string{"link", "rules", "lease", "released", "rules removed", "link removed"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m, cfg := newFakeHost(), nodeConfig(t)
			cfg.Intercept.OnExit = test.onExit
			a := agentOnHost(t, m, cfg)
			answered := map[string]bool{}
			m.do["link"] = func() {
				conn, err := net.Dial("tcp4", a.Addrs()[0].String()) // the kernel takes it for one that listens
				answered["the sockets are open before the address is there"] = err == nil
				if err == nil {
					_ = conn.Close()
				}
			}
			m.do["lease"] = func() { answered["queries are answered before the lease is taken"] = answers(t, a) }
			m.do["released"] = func() { answered["queries are answered after the lease was released"] = answers(t, a) }
			stop := runNode(t, a)
			until(t, "the agent is ready", func() bool { return a.notReady() == nil })
			if err := stop(); err != nil {
				t.Errorf("Run returned %v", err)
			}
			assert.Same(t, "what was done to the node", test.want, m.lines())
			for what, ok := range answered {
				if !ok {
					t.Errorf("not so: %s", what)
				}
			}
			if len(answered) != 3 {
				t.Errorf("looked only at %v", answered)
			}
			assert.Equal(t, "rules are there at the end", test.rules, m.kernel.Rules() != nil)
		})
	}
}

func TestNodeNotReadyBeforeTheLease(t *testing.T) {
	t.Parallel()
	m := newFakeHost()
	m.kernel.Fail(intercepttest.CallRenew, 1_000_000, errors.New("the kernel has no such set"))
	a := agentOnHost(t, m, nodeConfig(t))
	runNode(t, a)
	<-a.Ready()
	until(t, "the status names the lease", func() bool {
		return slices.ContainsFunc(a.Status().Problems, func(p status.Problem) bool {
			return p.Where == "intercept" && strings.Contains(p.What, "no such set")
		})
	})
	if err := a.notReady(); err == nil || !strings.Contains(err.Error(), "no lease is held") {
		t.Errorf("notReady() = %v, want that no lease is held", err)
	}
	if !answers(t, a) {
		t.Error("an agent without a lease does not answer")
	}
	m.kernel.Fail(intercepttest.CallRenew, 0, nil)
	until(t, "the agent is ready", func() bool { return a.notReady() == nil })
}

// TestNodeReleaseFailing has queries come until the lease has ended by itself.
func TestNodeReleaseFailing(t *testing.T) {
	t.Parallel()
	m, cfg := newFakeHost(), nodeConfig(t)
	cfg.Intercept.Lease = time.Second
	m.kernel.Fail(intercepttest.CallRelease, 10, errors.New("no memory"))
	a, stop := serveOnHost(t, m, cfg)
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	packet := intercepttest.Packet{Network: "udp", To: netip.AddrPortFrom(cfg.Listen.Addresses[0], cfg.Listen.Port)}
	until(t, "the lease has ended", func() bool {
		answered := answers(t, a)
		leased := m.kernel.Route(packet).Decision == intercepttest.ToAgent // still, after the answer
		if leased && !answered {
			t.Error("a query that comes to the agent is not answered")
		}
		return !leased
	})
	if err := <-ended; err != nil {
		t.Errorf("Run returned %v", err)
	}
}

func TestNodeOfANewerAgent(t *testing.T) {
	t.Parallel()
	m, cfg := newFakeHost(), nodeConfig(t)
	cfg.Intercept.OnExit = config.ExitRemove
	a, stop := serveOnHost(t, m, cfg)
	newer := *m.kernel.Rules()
	newer.Owner = "newer1"
	m.kernel.Overwrite(newer)
	until(t, "the agent stands down", func() bool { return a.Status().Node.Intercept.StoodDown })
	if err := a.notReady(); err == nil || !strings.Contains(err.Error(), "newer1") {
		t.Errorf("notReady() = %v, want the newer agent named", err)
	}
	if err := stop(); err != nil {
		t.Errorf("Run returned %v", err)
	}
	if r := m.kernel.Rules(); r == nil || r.Owner != "newer1" {
		t.Errorf("the newer agent's rules are %v", r)
	}
	if slices.Contains(m.lines(), "link removed") {
		t.Error("the newer agent's link was removed")
	}
}

func TestNodeStartFails(t *testing.T) {
	t.Parallel()
	t.Run("without the right", func(t *testing.T) {
		t.Parallel()
		m := newFakeHost()
		m.lacks = []string{"NET_ADMIN"}
		a := agentOnHost(t, m, nodeConfig(t))
		err := a.Listen(t.Context())
		var hint *hint.Error
		if !errors.As(err, &hint) || !strings.Contains(err.Error(), "NET_ADMIN") || !strings.Contains(hint.Hint, "capabilities") {
			t.Errorf("Listen() = %v, want the missing right and a hint", err)
		}
		if got := m.lines(); len(got) > 0 {
			t.Errorf("the node was touched: %v", got)
		}
	})
	t.Run("no link can be made", func(t *testing.T) {
		t.Parallel()
		m := newFakeHost()
		m.setupErr = errors.New("no kind of link can be had")
		cfg := nodeConfig(t)
		cfg.Intercept.OnExit = config.ExitRemove
		a := agentOnHost(t, m, cfg)
		assert.NoError(t, a.Listen(t.Context()))
		addr := a.Addrs()[0]
		err := a.Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), "interface: no kind of link") {
			t.Errorf("Run() = %v, want the error of Setup", err)
		}
		if conn, err := net.Dial("tcp4", addr.String()); err == nil {
			_ = conn.Close()
			t.Error("the sockets are still open")
		}
		if got, want := m.lines(), []string{"link", "link removed"}; !slices.Equal(got, want) || m.closed != 1 {
			t.Errorf("done to the node: %v, and the backend was closed %d times, want %v and once", got, m.closed, want)
		}
	})
}

func TestNodeTransparent(t *testing.T) {
	t.Parallel()
	transparent := func(t *testing.T) config.Config {
		t.Helper()
		cfg := nodeConfig(t)
		cfg.Intercept.Mode, cfg.Intercept.Fallback = config.ModeTransparent, config.Fallback{Central: true}
		return cfg
	}
	t.Run("with a given address", func(t *testing.T) {
		t.Parallel()
		m, cfg := newFakeHost(), transparent(t)
		cfg.Intercept.Services = []netip.Addr{netip.MustParseAddr("10.96.0.10")}
		_, stop := serveOnHost(t, m, cfg)
		r := m.kernel.Rules()
		if r.Mode != rules.Transparent || !slices.Equal(r.Services, cfg.Intercept.Services) || len(r.Fallback) > 0 {
			t.Errorf("the rules are %+v", r)
		}
		if err := stop(); err != nil || m.kernel.Rules() != nil {
			t.Errorf("after the end, %v: rules %v, want none", err, m.kernel.Rules())
		}
	})
	t.Run("until the service is known", func(t *testing.T) {
		t.Parallel()
		m := newFakeHost()
		a := agentOnHost(t, m, transparent(t))
		runNode(t, a)
		<-a.Ready()
		if err := a.notReady(); err == nil || !strings.Contains(err.Error(), "the cluster IP") {
			t.Errorf("notReady() = %v, want what it waits for", err)
		}
		if slices.Contains(m.lines(), "rules") {
			t.Error("there are rules for an unknown address")
		}
	})
	t.Run("where the data plane is earlier", func(t *testing.T) {
		t.Parallel()
		m, cfg := newFakeHost(), transparent(t)
		cfg.Intercept.Services = []netip.Addr{netip.MustParseAddr("10.96.0.10")}
		m.found = dataplane.Found{Proxy: dataplane.Cilium, Backend: dataplane.BackendNFTables, Early: true, Note: "Cilium rewrites packets before netfilter"}
		a := agentOnHost(t, m, cfg)
		runNode(t, a)
		<-a.Ready()
		if err := a.notReady(); err == nil || !strings.Contains(err.Error(), "data plane") {
			t.Errorf("notReady() = %v, want the data plane named", err)
		}
		if !slices.ContainsFunc(a.Status().Problems, func(p status.Problem) bool { return strings.Contains(p.What, "Cilium") }) {
			t.Errorf("no problem names Cilium: %v", a.Status().Problems)
		}
		if slices.Contains(m.lines(), "rules") {
			t.Error("there are rules, though none could see a packet")
		}
	})
}

// TestNodeWithoutAPIServer has no API server: the fallback, or the tracked path, gets the queries. [TestSnapshotBeforeSync] waits
// until the agent takes them.
func TestNodeWithoutAPIServer(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{config.ModeLinkLocal, config.ModeTransparent} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			m, cfg := newFakeHost(), nodeConfig(t)
			cfg.Cluster.Resolver, cfg.Cluster.Kubeconfig = config.ResolverLocal, awayKubeconfig(t)
			cfg.Cluster.Central.Service = config.ServiceName{Namespace: "kube-system", Name: "kube-dns"}
			cfg.Intercept.Mode, cfg.Intercept.Fallback = mode, config.Fallback{Central: true}
			if mode == config.ModeTransparent {
				cfg.Intercept.Services = []netip.Addr{netip.MustParseAddr("10.96.0.10")}
			}
			a := agentOnHost(t, m, cfg)
			runNode(t, a)
			until(t, "the rules are there", func() bool { return slices.Contains(m.lines(), "rules") })
			time.Sleep(time.Second) // two renewals
			if slices.Contains(m.lines(), "lease") {
				t.Error("the lease was taken though nothing is known of the cluster")
			}
		})
	}
}

// awayKubeconfig is a kubeconfig of an unreachable API server.
func awayKubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
  users: [{name: u, user: {token: t}}], clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]}`
	assert.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
