// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
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
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/admin/top"
	"github.com/nodecache/node-cache/pkg/resolve"
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
// returns the address of the page.
func exampleServer(t *testing.T) (address string) {
	t.Helper()
	var s status.Status
	text, err := os.ReadFile("../../pkg/admin/testdata/status.json")
	assert.NoError(t, err)
	assert.NoError(t, json.Unmarshal(text, &s))
	var st resolve.Stats
	now := time.Now
	p, err := page.New(page.Config{
		Status: func() status.Status { return s }, Stats: func() resolve.Stats { return st },
		SearchPath: func() bool { return false }, Now: func() time.Time { return now() },
		Top: func() *top.Page {
			return &top.Page{
				Pods: []top.Row{
					{Namespace: "shop", Pod: "db-0", Workload: "StatefulSet/db", Counts: top.Counts{Queries: 21406, Upstream: 871, Search: 428}},
					{Namespace: "shop", Pod: "web-5d4f8c7b9-x2x7q", Workload: "Deployment/web", Counts: top.Counts{Queries: 160210, Upstream: 3110, Search: 126566, Failed: 19}},
				},
				Unknown: top.Counts{Queries: 1056, Failed: 2},
				Names: []top.Name{
					{Name: "db.shop.svc.cluster.local.", Counts: top.Counts{Queries: 41871}},
					{Name: "api.example.com.", Counts: top.Counts{Queries: 12031, Upstream: 871, Failed: 21}},
				},
			}
		},
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
	socket := proctest.SocketPath(t)
	a, err := admin.New(admin.Config{
		Addr: netip.MustParseAddrPort("127.0.0.1:0"), Socket: socket, Metrics: http.NotFoundHandler(),
		Ready: func() error { return nil }, Status: func(bool) any { return s }, Front: p.Serve, Watch: watch,
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
	return proctest.PageURL(t, socket)
}

// watch streams 250 queries, then hostile ones in two parts, and what was left out.
func watch(url.Values) (<-chan []byte, func(), error) {
	const query = `{"time":"2026-11-20T22:10:00.5Z","name":"%s","type":"A","rcode":"NOERROR","source":"cache","took_seconds":0.000031,"client":"10.244.1.7","pod":"%s"}` + "\n"
	lines := make(chan []byte, 300)
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
	address := exampleServer(t)
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
	t.Run("live queries", func(t *testing.T) {
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
