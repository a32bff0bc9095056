// SPDX-License-Identifier: Apache-2.0

package page_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/admin/page"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/admin/top"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/names/push"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/subscribe"
)

// index is the part of a view that does not depend on the client.
func index() []admin.Page {
	return []admin.Page{{Path: "/status", Meaning: "status of the agent"}, {Path: "/top", Meaning: "queries of pods", Private: true}}
}

// example is the status that docs/status.md shows.
func example(t *testing.T) (s status.Status) {
	t.Helper()
	text, err := os.ReadFile("../testdata/status.json")
	assert.NoError(t, err)
	assert.NoError(t, json.Unmarshal(text, &s))
	return s
}

// config has an empty status and no pods.
func config() page.Config {
	return page.Config{
		Status: func() status.Status { return status.Status{} }, Stats: func() resolve.Stats { return resolve.Stats{} },
		Recent: func() *top.Recent { return &top.Recent{} }, SearchPath: func() bool { return false }, Now: time.Now,
	}
}

// statusOf returns a status with what an agent and a resolver say of push.
func statusOf(c status.Cluster, served *push.Stats) func() status.Status {
	return func() status.Status { return status.Status{Cluster: &c, Push: served} }
}

// serve requests a path of a page with the configuration.
func serve(t *testing.T, cfg page.Config, path string, v admin.View) *httptest.ResponseRecorder {
	t.Helper()
	p, err := page.New(cfg)
	assert.NoError(t, err)
	w := httptest.NewRecorder()
	p.Serve(w, httptest.NewRequest(http.MethodGet, path, nil), v)
	return w
}

// textOf returns what a reader sees of a page: its text with single blanks, without style and titles.
func textOf(html string) string {
	html = regexp.MustCompile(`(?s)<(style|title|script).*?</(style|title|script)>`).ReplaceAllString(html, "")
	html = regexp.MustCompile(`<[^>]*>`).ReplaceAllString(html, " ")
	return strings.Join(strings.Fields(html), " ")
}

// busy is a pod with many search suffixes, one with few queries, one without suffixes, and a client that is no pod.
func busy() *top.Recent {
	return &top.Recent{
		Clients: []top.RecentRow{
			{Client: "shop/web-1", Workload: "Deployment/web", Queries: 8000, Search: 6320, Failed: 80, Slowest: 4.004},
			{Client: "shop/db-0", Workload: "StatefulSet/db", Queries: 1000, Upstream: 40, Search: 20},
			{Client: "10.0.0.9", Queries: 500},
			{Client: "shop/small", Queries: 99, Search: 90},
		},
		Names: []top.RecentRow{{Name: "api.example.com.", Queries: 5000, Failed: 80, Slowest: 4.004}},
		Pairs: []top.RecentRow{
			{Client: "shop/web-1", Name: "api.example.com.", Queries: 4000},
			{Client: "shop/db-0", Name: "api.example.com.", Queries: 1000},
			{Client: "shop/web-1", Name: "db.shop.svc.cluster.local.", Queries: 900},
		},
		Slow: []top.SlowReply{
			{Time: "2026-11-20T22:09:00Z", Took: 4.004, Client: "shop/web-1", Name: "api.example.com.", Failed: true},
			{Time: "2026-11-20T21:30:00Z", Took: 0.9, Client: "shop/db-0", Name: "www.example.com."},
		},
	}
}

func TestContent(t *testing.T) {
	t.Parallel()
	shown := admin.View{Token: "TOKEN", Pages: index()}
	const suffixes = "set ndots: 2 in the dnsConfig of Deployment/web, or end outside names with a dot"
	for _, tc := range []struct {
		name      string
		change    func(*page.Config)
		view      admin.View
		want, not []string
	}{
		{
			"nothing is known", func(*page.Config) {}, shown,
			[]string{"0 queries, – hits", "Problems none", "hits –", "hits – misses –", "stale – SERVFAIL –", "no cluster", "not managed", "/top queries of pods"},
			[]string{"Live queries", "restart", "node-cache page", "Slowest replies", "Push:", "Subscribers"},
		},
		{
			"the status of docs/status.md", func(c *page.Config) { c.Status = func() status.Status { return example(t) } }, shown,
			[]string{
				"node-cache on worker-3, cluster west", "ready , version v0.7.0, up 3h25m7s, 169.254.20.10:53, [fd00::10]:53", "182672 queries, 97 % hits, 17 shed, 2 in flight. 4311 cache entries, 3.0 MiB of 64.0 MiB",
				"config : the last file was refused: cache.sise: unknown key fix the file;", "tls://[2001:db8::1]:853 example.com. dns.example.com x509: certificate has expired down 1s 43 43",
				"udp://192.0.2.1:53 . good 1.8ms 5044 12", "tcp://10.244.3.9:53 cluster.central good 620µs 298 1",
				"cluster.local. from API server https://10.96.0.1:443: in sync", "service 412 12s", "link-local with nftables, data plane nftables. Without a lease queries go to 10.244.0.7:53 10.244.1.9:53",
				"169.254.20.10 held works fd00::10 held unverified there is no fallback", "file /etc/node-cache/config.yaml, generation 3 of 2026-11-20T22:10:00Z The last one was refused.",
			},
			[]string{"not held", "Waits for a restart"},
		},
		{
			"states with a problem", func(c *page.Config) {
				s := example(t)
				s.State, s.Config.NeedRestart = "not ready: starting", []string{"listen.port", "intercept"}
				s.Node.Intercept.Leases[1] = intercept.LeaseStats{Address: netip.MustParseAddr("fd00::10"), Problem: "no reply", Fallback: intercept.FallbackBroken, FallbackWhy: "1 of 2 endpoints fail"}
				s.Cluster.InSync, s.Cluster.WaitsFor = false, "service: unreachable"
				s.Cluster.NodePods = &status.NodePods{Stats: pods.Stats{Pods: 7}, LastError: "forbidden"}
				c.Status = func() status.Status { return s }
			}, shown,
			[]string{"not ready: starting", "Waits for a restart: listen.port intercept", "fd00::10 not held no reply broken 1 of 2 endpoints fail", "waits for service: unreachable", "pods of the node forbidden 7 –"},
			nil,
		},
		{
			"a session of push", func(c *page.Config) {
				c.Status = statusOf(status.Cluster{Central: &status.Central{Push: &subscribe.Stats{
					Server: "push://10.0.1.7:53", Since: time.Date(2026, 11, 20, 22, 9, 1, 0, time.FixedZone("", 3600)), Names: 41, Kept: 1234, Events: 17,
				}}}, nil)
			}, shown,
			[]string{"Push: session with push://10.0.1.7:53 since 2026-11-20 21:09:01 UTC, 41 names. 1234 answers kept, 17 changes reported."},
			[]string{"no session", "Subscribers"},
		},
		{
			"no session of push", func(c *page.Config) {
				c.Status = statusOf(status.Cluster{Central: &status.Central{Push: &subscribe.Stats{Why: subscribe.NoServer, Kept: 3}}}, nil)
			}, shown,
			[]string{"Push: no session: " + subscribe.NoServer + " . 3 answers kept, 0 changes reported."},
			[]string{"since", "no name is asked for"},
		},
		{
			"an idle agent", func(c *page.Config) {
				c.Status = statusOf(status.Cluster{Central: &status.Central{Push: &subscribe.Stats{Why: "idle", Idle: true}}}, nil)
			}, shown,
			[]string{"Push: no session: no name is asked for."},
			nil,
		},
		{
			"a resolver", func(c *page.Config) {
				c.Status = statusOf(status.Cluster{}, &push.Stats{Sessions: 3, Subscriptions: 900, Refused: push.Refused{Name: 7, Count: 2, Memory: 5}, Ended: push.Ended{Memory: 1}})
			}, shown,
			[]string{"Subscribers: 3 sessions, 900 subscriptions. Refused: 7 by name, 2 for their number, 5 for lack of memory . Sessions ended for lack of memory: 1"},
			[]string{"Push:"},
		},
		{
			"pods", func(c *page.Config) { c.Recent = busy }, shown,
			[]string{
				"shop/web-1 Deployment/web api.example.com., db.shop.svc.cluster.local. Fix: set pods.searchPath: on in the configuration, or " + suffixes + " 8000 0 % 79 % 1 % 4s",
				"shop/db-0 StatefulSet/db api.example.com. 1000 4 % 2 % 0 % –", "10.0.0.9 500 0 %", "shop/small 99 0 % 90.9 % 0 %",
				"api.example.com. shop/web-1, shop/db-0 5000 0 % 0 % 1.6 % 4s",
				"Slowest replies: 4s for api.example.com. to shop/web-1 at 22:09:00, SERVFAIL ; 900ms for www.example.com. to shop/db-0 at 21:30:00",
			},
			[]string{"not confirmed"},
		},
		{
			"pods that the agent answers by their search path", func(c *page.Config) { c.Recent, c.SearchPath = busy, func() bool { return true } }, shown,
			[]string{"Fix: " + suffixes},
			[]string{"pods.searchPath"},
		},
		{
			"a flood of names with search suffixes", func(c *page.Config) {
				c.Recent = func() *top.Recent {
					return &top.Recent{Clients: []top.RecentRow{{Client: "shop/web-1", Workload: "Deployment/web", Queries: 50_000_000, Search: 50_000_000}}}
				}
			}, shown,
			[]string{"Fix: set pods.searchPath: on in the configuration"},
			nil,
		},
		{
			"stale pods", func(c *page.Config) { c.Recent = func() *top.Recent { return &top.Recent{Stale: true} } }, shown,
			[]string{"The API server has not confirmed the pods recently."},
			nil,
		},
		{
			"a client without the token", func(c *page.Config) { c.Recent = busy },
			admin.View{Watch: true, Pages: index()},
			[]string{"Clients and queries are shown with the token of this process only: open the address that node-cache page prints.", "0 queries"},
			[]string{"shop", "api.example.com", "Live queries", "Who asks for what"},
		},
		{"live queries", func(*page.Config) {}, admin.View{Token: "TOKEN", Watch: true}, []string{"Live queries Name and below Client or pod Reply all NOERROR", "Start Time Name", "Who asks for what"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cfg := config()
			tc.change(&cfg)
			text := textOf(serve(t, cfg, "/", tc.view).Body.String())
			for _, want := range tc.want {
				if !strings.Contains(text, want) {
					t.Errorf("the page lacks %q:\n%s", want, text)
				}
			}
			for _, not := range tc.not {
				if strings.Contains(text, not) {
					t.Errorf("the page has %q:\n%s", not, text)
				}
			}
		})
	}
}

// hostile is in every text of a hostile status.
const hostile = `"'></title></style></script><script>alert(1)</script><img src=x onerror=alert(1)>{{.}}` + "\x00\x1b[2J\xff\u202e"

// spoil sets every text in v to text, and gives every list the number of items. It leaves out what cannot be any text, such as an address.
func spoil(v reflect.Value, text string, items int) {
	if !v.CanSet() {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		spoil(v.Elem(), text, items)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), items, items))
		for i := range items {
			spoil(v.Index(i), text, items)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			spoil(field, text, items)
		}
	default:
	}
}

// TestHostileTexts has texts in all fields that try to become elements, from a pod, an upstream and an API server. None does, and
// the page stays small.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	var s status.Status
	spoil(reflect.ValueOf(&s).Elem(), hostile, 5)
	const long = 100_000 // bytes, of texts that are not the configuration's
	spoil(reflect.ValueOf(&s.Problems).Elem(), hostile+strings.Repeat("x", long), 100)
	spoil(reflect.ValueOf(&s.Upstreams).Elem(), hostile, 1000)
	for i := range s.Upstreams {
		s.Upstreams[i].LastError = strings.Repeat(hostile, long/len(hostile))
	}
	for i := range s.Cluster.Kinds {
		s.Cluster.Kinds[i].LastError = strings.Repeat("é", long)
	}
	cfg := config()
	cfg.Status = func() status.Status { return s }
	cfg.Recent = func() *top.Recent {
		asked := &top.Recent{}
		spoil(reflect.ValueOf(asked).Elem(), hostile+strings.Repeat("x", long), 300)
		asked.Clients[0].Queries, asked.Clients[0].Search = 1000, 1000
		return asked
	}
	body := serve(t, cfg, "/", admin.View{Token: "TOKEN"}).Body.String()
	for element, want := range map[string]int{"<script": 1, "</script>": 1, "<style": 1, "<img": 0, "<main": 1, "alert(1)</": 0, `"'>`: 0, "\x00": 0} {
		assert.Equal(t, "number of "+element, want, strings.Count(body, element))
	}
	if !strings.Contains(body, "&lt;script&gt;alert(1)") {
		t.Error("the page does not show the hostile text")
	}
	if len(body) > 80<<10 {
		t.Errorf("%d bytes, want 80 KiB at most", len(body))
	}
}

// TestPolicy holds the page and the script to a policy that allows nothing else.
func TestPolicy(t *testing.T) {
	t.Parallel()
	reply := serve(t, config(), "/", admin.View{Token: "TOKEN", Watch: true, Pages: index()})
	body := reply.Body.String()
	style := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(body)[1]
	hash := sha256.Sum256([]byte(style))
	want := http.Header{
		"Content-Security-Policy": {"default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) +
			"'; script-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
		"Content-Type": {"text/html; charset=utf-8"},
	}
	assert.Same(t, "header", want, reply.Header())
	for _, link := range []string{`href="./status"`, `href="./top?token=TOKEN"`} {
		if !strings.Contains(body, link) {
			t.Errorf("the page lacks %s", link)
		}
	}
	if bad := regexp.MustCompile(`(?i)<[^>]*\s(style|on\w+)=|https?://|javascript:`).FindString(body); bad != "" {
		t.Errorf("the page has %q", bad)
	}

	reply = serve(t, config(), admin.ScriptPath, admin.View{})
	want.Set("Content-Type", "text/javascript; charset=utf-8")
	assert.Same(t, "header of the script", want, reply.Header())
	if weight := len(body) + reply.Body.Len(); weight > 20<<10 {
		t.Errorf("page and script have %d bytes, want 20 KiB at most", weight)
	}
}

// TestRenderedTwiceASecond requests the page from many clients at once: it is rendered once for those with the token and once for
// the others, and again half a second later.
func TestRenderedTwiceASecond(t *testing.T) {
	t.Parallel()
	var rendered, passed atomic.Int64
	began := time.Now()
	cfg := config()
	cfg.Status = func() status.Status {
		rendered.Add(1)
		return status.Status{}
	}
	cfg.Now = func() time.Time { return began.Add(time.Duration(passed.Load())) }
	p, err := page.New(cfg)
	assert.NoError(t, err)
	for _, step := range []struct {
		after time.Duration
		want  int64
	}{{0, 2}, {499 * time.Millisecond, 2}, {time.Millisecond, 4}} {
		passed.Add(int64(step.after))
		var clients sync.WaitGroup
		for i := range 100 {
			clients.Go(func() {
				w := httptest.NewRecorder()
				p.Serve(w, httptest.NewRequest(http.MethodGet, "/", nil), admin.View{Token: []string{"", "TOKEN"}[i%2]})
				if w.Code != http.StatusOK || w.Body.Len() == 0 {
					t.Errorf("a client got %d with %d bytes", w.Code, w.Body.Len())
				}
			})
		}
		clients.Wait()
		assert.Equal(t, "renderings", step.want, rendered.Load())
	}
}

func BenchmarkRender(b *testing.B) {
	cfg := config()
	now := time.Now()
	cfg.Now = func() time.Time {
		now = now.Add(time.Second)
		return now
	}
	cfg.Recent = busy
	p, err := page.New(cfg)
	assert.NoError(b, err)
	for range 200 {
		p.Record()
	}
	b.ReportAllocs()
	for b.Loop() {
		p.Serve(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil), admin.View{Token: "TOKEN", Pages: index()})
	}
}
