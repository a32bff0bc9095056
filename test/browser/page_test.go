// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/admin/page"
	"github.com/nodecache/node-cache/pkg/admin/relay"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/admin/top"
	"github.com/nodecache/node-cache/pkg/names/push"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/subscribe"
	"github.com/nodecache/node-cache/pkg/wire"
)

// nodeCache is the path of the binary under test, set by TestMain.
var nodeCache string

func TestMain(m *testing.M) {
	os.Exit(proctest.Main(m, &nodeCache))
}

const zone = `$ORIGIN e2e.test.
$TTL 300
@ IN SOA ns hostmaster 1 3600 600 86400 300
@ IN NS ns
ns IN A 192.0.2.53
long IN A 192.0.2.1
`

// ask sends one query. It fails without a reply within the time after which stub resolvers give up, 5 s.
func ask(t *testing.T, server netip.AddrPort, name string) {
	t.Helper()
	client := dns.Client{Timeout: 4500 * time.Millisecond}
	if _, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), server.String()); err != nil {
		t.Fatalf("asking for %s: %v", name, err)
	}
}

// TestPage reads the page of a real agent in a browser while queries are answered, its upstream ends, and it ends itself.
func TestPage(t *testing.T) {
	browser := startBrowser(t)
	to, addr, web, socket := proctest.FreeAddr(t), proctest.FreeAddr(t), proctest.FreeAddr(t), proctest.SocketPath(t)
	upstream := proctest.StartNSD(t, to, map[string]string{"e2e.test": zone})
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf("listen: {addresses: [%s], port: %d}\nforward: [{zone: ., to: ['%s']}]\nadmin: {address: %s, socket: %s}\n", addr.Addr(), addr.Port(), to, web, socket)
	assert.NoError(t, os.WriteFile(config, []byte(text), 0o644))
	a := proctest.StartAgent(t, exec.Command(nodeCache, "agent", "--config", config), web, "/readyz", nil)
	address := proctest.PageURL(t, socket)
	ask(t, addr, "long.e2e.test.")

	static := openTab(browser, t, address, 1200, "light", true)
	if text := static.text("main"); !strings.Contains(text, "1 queries") || !strings.Contains(text, "udp://"+to.String()) {
		t.Errorf("without JavaScript the page shows %q", text)
	}
	static.checkQuiet()

	p := openTab(browser, t, address, 1200, "light", false)
	p.await("main", "1 queries")
	ask(t, addr, "long.e2e.test.")
	proctest.Figure(t, "a query is shown after %s", p.await("main", "2 queries, 50 % hits").Round(10*time.Millisecond))
	p.await("section[aria-labelledby=top] table:last-of-type tbody", "long.e2e.test.\n127.0.0.1\n\t2\t50 %") // without pods.identity
	p.checkQuiet()

	upstream.Kill()
	proctest.Eventually(t, time.Minute, "the agent has noticed that the upstream is gone", func() bool {
		ask(t, addr, fmt.Sprintf("n%d.e2e.test.", time.Now().UnixNano()))
		var s status.Status
		a.Status(t, &s)
		return s.Upstreams[0].State != "good"
	})
	took := proctest.Eventually(t, time.Minute, "the page shows it", func() bool { return p.text("section[aria-labelledby=upstreams] td.bad") != "" })
	if proctest.Soak() && took > 2*time.Second { // on an idle machine
		t.Errorf("the page shows the end of the upstream %s after the status, want 2 s at most", took)
	}
	proctest.Figure(t, "the end of the upstream is shown %s after /status shows it", took.Round(10*time.Millisecond))
	p.checkQuiet()

	a.Killed = true
	a.Signal(syscall.SIGKILL)
	p.await("body", "Agent not reachable since")
	p.checkLayout()
}

// exampleServer serves the page with the example of docs/status.md, pods, ten minutes of queries, and a stream of live queries. It
// returns the address of the page, and the path of the socket.
func exampleServer(t *testing.T) (address, socket string) {
	t.Helper()
	var s status.Status
	text, err := os.ReadFile("../../pkg/admin/testdata/status.json")
	assert.NoError(t, err)
	assert.NoError(t, json.Unmarshal(text, &s))
	for i := range s.Timeline {
		if e := &s.Timeline[i]; e.Reason == status.UpstreamDown && e.Until == "" {
			e.Failed, e.Clients = 1019, []status.FailedClient{{Client: "shop/web-5d4f8c7b9-x2x7q", Name: "api.example.com."}}
		}
	}
	s.Cluster.Central.Push = &subscribe.Stats{Server: "push://[2001:db8:1111:2222:3333:4444:5555:6666]:53", Since: time.Unix(0, 0), Names: 41, Kept: 12345, Events: 17}
	s.Push = &push.Stats{Sessions: 500, Subscriptions: 150_000, Refused: push.Refused{Memory: 1}, Ended: push.Ended{Memory: 2}} // no process has both
	var st resolve.Stats
	now := time.Now
	shift := time.Date(2026, 11, 21, 1, 10, 0, 0, time.UTC).Sub(time.Date(2000, 1, 1, 0, 10, 0, 0, time.UTC)) // from virtual time to that of the example
	p, err := page.New(page.Config{
		Status: func() status.Status { return s }, Stats: func() resolve.Stats { return st },
		SearchPath: func() bool { return false }, Now: func() time.Time { return now().Add(shift) },
		Recent: recent,
	})
	assert.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		go p.Run(t.Context())
		time.Sleep(time.Second / 2) // no change at the same time as a sample
		for i := range 600 {
			time.Sleep(time.Second)
			queries := uint64(300 + 200*math.Sin(float64(i)/60))
			misses := queries / 40
			if i > 380 && i < 430 { // while the upstream is slow
				misses *= 6
				st.Responses[resolve.SourceFailure][wire.RcodeServFail] += 20
				st.Durations[resolve.SourceUpstream].Replies[13] += misses / 3
			}
			st.Queries[0][0][0] += queries
			st.Responses[resolve.SourceCache][wire.RcodeSuccess] += queries - misses
			st.Responses[resolve.SourceUpstream][wire.RcodeSuccess] += misses
			st.Durations[resolve.SourceCache].Replies[0] += queries - misses
			st.Durations[resolve.SourceUpstream].Replies[6] += misses
		}
		ended := time.Now()
		now = func() time.Time { return ended }
	})
	socket = proctest.SocketPath(t)
	a, err := admin.New(admin.Config{
		Addr: netip.MustParseAddrPort("127.0.0.1:0"), Socket: socket, Metrics: http.NotFoundHandler(),
		Ready: func() error { return nil }, Status: func(bool) any { return s }, Front: p.Serve, Watch: watch,
		Top: func(string) (any, error) { return recent(), nil },
	})
	assert.NoError(t, err)
	assert.NoError(t, a.Listen(t.Context()))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended)
	})
	return proctest.PageURL(t, socket), socket
}

// relayed returns the address of the page as `kubectl node-cache page` relays it.
func relayed(t *testing.T, socket string) string {
	t.Helper()
	agent := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	at := &url.URL{Scheme: "http", Path: "/secret/"}
	server := httptest.NewUnstartedServer(relay.Page(at, agent))
	at.Host = server.Listener.Addr().String()
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return at.String()
}

// recent is what the pods of the example asked.
func recent() *top.Recent {
	const (
		web, db = "shop/web-5d4f8c7b9-x2x7q", "shop/db-0"
		api     = "api.example.com."
	)
	return &top.Recent{
		Clients: []top.RecentRow{
			{Client: web, Workload: "Deployment/web", Queries: 160210, Upstream: 3110, Search: 126566, Failed: 1019, Slowest: 4.004},
			{Client: db, Workload: "StatefulSet/db", Queries: 21406, Upstream: 871, Search: 428, Slowest: 0.0312},
			{Client: "10.0.0.9", Queries: 1056, Failed: 2, Slowest: 0.0221},
		},
		Names: []top.RecentRow{{Name: "db.shop.svc.cluster.local.", Queries: 41871}, {Name: api, Queries: 12031, Upstream: 871, Failed: 1021, Slowest: 4.004}},
		Pairs: []top.RecentRow{
			{Client: web, Name: "db.shop.svc.cluster.local.", Queries: 41001},
			{Client: web, Name: api, Queries: 11000, Failed: 1019, Slowest: 4.004},
			{Client: db, Name: api, Queries: 1031, Failed: 2},
		},
		Slow: []top.SlowReply{{Time: "2026-11-21T01:06:40Z", Took: 4.004, Client: web, Name: api, Failed: true}},
	}
}

// focus moves the keyboard's focus to the first element of a selector with a text.
func focus(p *tab, selector, text string) {
	run(p, chromedp.Evaluate[bool](fmt.Sprintf("[...document.querySelectorAll(%q)].find((e) => e.textContent == %q).focus(), true", selector, text)))
}

// watch streams 250 queries, then hostile ones in two parts, and what was left out.
func watch(given url.Values) (<-chan []byte, func(), error) {
	const query = `{"time":"2026-11-20T22:10:00.5Z","name":"%s","type":"A","rcode":"NOERROR","source":"cache","took_seconds":0.000031,"client":"10.244.1.7","pod":"%s"}` + "\n"
	lines := make(chan []byte, 300)
	if given.Get("rcode") != "" {
		given.Del("token")
		lines <- bytes.Replace(fmt.Appendf(nil, query, given.Encode(), "shop/db-0"), []byte(`NOERROR","source":"cache"`), []byte(`SERVFAIL","source":"failure","upstream":"udp://192.0.2.53:53","failure":"timeout"`), 1)
		lines <- fmt.Appendf(nil, query, "of another pod", "shop/db-1")
		return lines, func() {}, nil
	}
	for i := range 250 {
		lines <- fmt.Appendf(nil, query, fmt.Sprintf("n%d.example.com.", i), "shop/db-0")
	}
	last := fmt.Appendf(nil, query, "<img src=x onerror=alert(1)>.", "")
	lines <- last[:60]
	lines <- last[60:]
	lines <- []byte(`{"dropped":7}` + "\n")
	return lines, func() {}, nil
}

// TestPageExample shows the page of the example on a desktop and on a phone, in light and dark. With -update it writes the screenshot
// of docs/troubleshooting.md.
func TestPageExample(t *testing.T) {
	browser := startBrowser(t)
	address, socket := exampleServer(t)
	for _, tc := range []struct {
		name  string
		width int64
	}{{"desktop", 1200}, {"phone", 360}} {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(tc.name+" "+scheme, func(t *testing.T) {
				p := openTab(browser, t, address, tc.width, scheme, false)
				p.await("main", "Fix: set pods.searchPath: on")
				p.checkLayout()
				p.checkTree()
				p.checkQuiet()
				p.await("main", "182672 queries")
				p.mu.Lock()
				weight := p.bytes[""] + p.bytes["page.js"]
				p.mu.Unlock()
				if weight == 0 || weight > 32<<10 {
					t.Errorf("page and script have %.0f bytes, want 32 KiB at most", weight)
				}
				proctest.Figure(t, "page and script: %.1f KiB", weight/1024)
				if tc.width == 1200 && scheme == "dark" {
					p.screenshot("page-dark.webp")
				}
			})
		}
	}
	t.Run("questions of an operator", func(t *testing.T) {
		for _, width := range []int64{1200, 360} {
			p := openTab(browser, t, address, width, "light", false)
			p.await("main", "Fix: set pods.searchPath: on")
			for _, q := range []struct{ question, selector, answer string }{
				{"does it fail now?", ".verdict.bad", "forward example.com.: tls://[2001:db8::1]:853 is down: x509: certificate has expired"},
				{"since when?", ".verdict + p", "Since 01:05:12 UTC, for 4m48s"},
				{"for whom?", ".verdict + p", "1019 queries failed, first those of shop/web-5d4f8c7b9-x2x7q (api.example.com.)"},
				{"which upstream is bad?", "section[aria-labelledby=upstreams] tbody tr:first-child", "tls://[2001:db8::1]:853"},
				{"which upstream is bad?", "section[aria-labelledby=upstreams] tbody tr:first-child td.bad", "down"},
				{"which pod asks most?", "section[aria-labelledby=top] tbody tr:first-child", "shop/web-5d4f8c7b9-x2x7q"},
				{"and what?", "section[aria-labelledby=top] tbody tr:first-child", "db.shop.svc.cluster.local., api.example.com."},
				{"what failed in the last hour?", "section[aria-labelledby=timeline] tbody", "UpstreamDown"},
				{"what was slow in the last hour?", "section[aria-labelledby=timeline]", "4s for api.example.com. to shop/web-5d4f8c7b9-x2x7q at 01:06:40, SERVFAIL"},
				{"is the cache effective?", "main", "97 % hits"},
				{"how long do hits and misses take?", "section[aria-labelledby=plots] tbody", "cache"},
				{"which server reports changes?", "section[aria-labelledby=cluster]", "session with push://[2001:db8:1111:2222:3333:4444:5555:6666]:53 since 1970-01-01"},
				{"have subscribers enough memory?", "section[aria-labelledby=cluster] p:last-of-type", "1 for lack of memory"},
				{"which node, of which cluster?", "h1", "worker-3, cluster west"},
			} {
				if text := p.text(q.selector); !strings.Contains(text, q.answer) {
					t.Errorf("%s The page shows %q, want %q", q.question, text, q.answer)
				}
			}
		}
	})
	t.Run("from a pod to its names and back", func(t *testing.T) {
		p := openTab(browser, t, address, 360, "dark", false)
		focus(p, "section[aria-labelledby=top] a", "shop/db-0")
		run(p, chromedp.KeyEvent("\r"))
		p.await("#find tbody", "api.example.com.")
		assert.Equal(t, "names of the pod", 1, run(p, chromedp.Evaluate[int]("document.querySelectorAll('#find tbody tr').length")))
		focus(p, "#find a", "api.example.com.")
		run(p, chromedp.KeyEvent("\r"))
		p.await("#find tbody", "shop/web-5d4f8c7b9-x2x7q")
		assert.Equal(t, "pods of the name", 2, run(p, chromedp.Evaluate[int]("document.querySelectorAll('#find tbody tr').length")))
		p.checkLayout()
		p.checkTree()
		p.checkQuiet()
	})
	t.Run("filtered queries", func(t *testing.T) {
		p := openTab(browser, t, address, 360, "dark", false)
		run(p, chromedp.Evaluate[bool](`(() => {
  const form = document.querySelector("#live form");
  form.name.value = "example.com";
  form.client.value = "shop/db-0";
  form.rcode.value = "SERVFAIL";
  form.source.value = "failure";
  form.name.focus();
  return true;
})()`))
		run(p, chromedp.KeyEvent("\r"))
		p.await("#live tbody", "name=example.com&namespace=shop&pod=db-0&rcode=SERVFAIL&source=failure")
		p.await("#live tbody", "failure udp://192.0.2.53:53 timeout")
		assert.Equal(t, "rows, all failures", "1 1", run(p, chromedp.Evaluate[string](
			"`${document.querySelectorAll('#live tbody tr').length} ${document.querySelectorAll('#live tbody tr:has(td.bad)').length}`")))
		p.checkLayout()
		p.checkQuiet()
	})
	for name, address := range map[string]string{"live queries": address, "relayed": relayed(t, socket)} {
		t.Run(name, func(t *testing.T) {
			p := openTab(browser, t, address, 360, "light", false)
			run(p, chromedp.Evaluate[bool]("document.querySelector('#live button').focus(), true"))
			run(p, chromedp.KeyEvent("\r"))
			p.await("#live tbody tr:first-child", "<img src=x onerror=alert(1)>. A")
			p.await("#live p", "7 queries left out at ")
			p.await("#live tbody tr:nth-child(2)", "n249.example.com. A")
			assert.Equal(t, "rows", 100, run(p, chromedp.Evaluate[int]("document.querySelectorAll('#live tbody tr').length")))
			p.checkLayout()
			p.checkQuiet()
			run(p, chromedp.KeyEvent("\r"))
			p.await("#live button", "Start")
		})
	}
	t.Run("relayed, its cookies", func(t *testing.T) {
		p := openTab(browser, t, relayed(t, socket), 360, "light", false)
		const cookies = "(() => { try { return document.cookie } catch (e) { return e.name } })()"
		assert.Equal(t, "cookies of other servers on 127.0.0.1", "SecurityError", run(p, chromedp.Evaluate[string](cookies)))
	})
}
