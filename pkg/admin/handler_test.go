// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin"
)

// complete is a configuration whose every page works.
func complete() admin.Config {
	return admin.Config{
		Addr: netip.MustParseAddrPort("127.0.0.1:0"),
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "a_total 1\n")
		}),
		Ready:  func() error { return nil },
		Status: func() any { return map[string]any{"version": "v1"} },
		Front:  front,
	}
}

// front shows the view as a page that takes a millisecond.
func front(w http.ResponseWriter, _ *http.Request, v admin.View) {
	time.Sleep(time.Millisecond)
	_, _ = fmt.Fprintf(w, "local=%t watch=%t", v.Local, v.Watch)
	for _, p := range v.Pages {
		_, _ = fmt.Fprintf(w, " <%s>", p.Path)
	}
}

// server makes a server from complete after change.
func server(t *testing.T, change func(*admin.Config)) *admin.Server {
	t.Helper()
	cfg := complete()
	if change != nil {
		change(&cfg)
	}
	s, err := admin.New(cfg)
	assert.NoError(t, err)
	return s
}

// reply is what a test looks at.
type reply struct {
	Code int
	Type string
	Body string
}

func ask(h http.Handler, r *http.Request) reply {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return reply{Code: w.Code, Type: w.Header().Get("Content-Type"), Body: w.Body.String()}
}

// get is a request from this machine, with the names and values of a header.
func get(path string, header ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.RemoteAddr, r.Host = "127.0.0.1:40000", "127.0.0.1:9253"
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func TestNewRejects(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(*admin.Config)
		want   string
	}{
		{"no address", func(c *admin.Config) { c.Addr = netip.AddrPort{} }, "an admin server needs an address or a socket"},
		{"no metrics", func(c *admin.Config) { c.Metrics = nil }, "an admin server needs Metrics, Ready, and Status"},
		{"no readiness", func(c *admin.Config) { c.Ready = nil }, "an admin server needs Metrics, Ready, and Status"},
		{"no status", func(c *admin.Config) { c.Status = nil }, "an admin server needs Metrics, Ready, and Status"},
	} {
		cfg := complete()
		tc.change(&cfg)
		if _, err := admin.New(cfg); err == nil || err.Error() != tc.want {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
	}
}

// TestHosts serves every page under addresses, localhost and the names of the configuration, and under no other name:
// any site can point one here. See TestLocalPages for the pages with a guard of their own.
func TestHosts(t *testing.T) {
	t.Parallel()
	h := server(t, func(c *admin.Config) { c.Hosts = []string{"node-cache.example"} }).Handler()
	for host, want := range map[string]int{
		"10.244.1.7:9253": 200, "10.244.1.7": 200, "[fd00::1]:9253": 200, "[fd00::1]": 200, "localhost:9253": 200, "LOCALHOST.": 200, "": 200,
		"node-cache.example": 200, "Node-Cache.example.:9253": 200,
		"other.example": 403, "a.node-cache.example:9253": 403, "10.244.1.7.nip.io": 403, "localhost.example": 403, "10.244.1": 403,
	} {
		for _, path := range []string{"/", "/status", "/metrics", "/readyz", "/livez"} {
			r := get(path)
			r.Host = host
			got := ask(h, r)
			if got.Code != want || want == 403 && !strings.Contains(got.Body, "admin.hosts") {
				t.Errorf("%s of %q: %+v, want %d", path, host, got, want)
			}
		}
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	const text, js = "text/plain; charset=utf-8", "application/json"
	no := func(why string) func() error { return func() error { return errors.New(why) } }
	const up, down = "cluster", "outside"
	checks := func(labels ...string) func(*admin.Config) {
		results := map[string]error{down: errors.New("SERVFAIL\nfrom\x1b upstream")}
		return func(c *admin.Config) {
			c.Checks = func() iter.Seq2[string, error] {
				return func(yield func(string, error) bool) {
					for _, label := range labels {
						if !yield(label, results[label]) {
							return
						}
					}
				}
			}
		}
	}
	for _, tc := range []struct {
		name    string
		change  func(*admin.Config)
		request *http.Request
		want    reply
	}{
		{"metrics", nil, get("/metrics"), reply{200, text, "a_total 1\n"}},
		{"ready", nil, get("/readyz"), reply{200, text, "ok\n"}},
		{"not ready", func(c *admin.Config) { c.Ready = no("starting") }, get("/readyz"), reply{503, text, "starting\n"}},
		{"alive without a function", nil, get("/livez"), reply{200, text, "ok\n"}},
		{"not alive", func(c *admin.Config) { c.Live = no("stuck\x1b[2J") }, get("/livez"), reply{503, text, "stuck?[2J\n"}},
		{"alive and not ready", func(c *admin.Config) { c.Ready = no("starting") }, get("/livez"), reply{200, text, "ok\n"}},
		{"status", nil, get("/status"), reply{200, js, "{\n  \"version\": \"v1\"\n}\n"}},
		{"status as text", nil, get("/status?format=text"), reply{200, text, "version  v1\n"}},
		{"status as JSON by name", nil, get("/status?format=json", "Accept", "text/plain"), reply{200, js, "{\n  \"version\": \"v1\"\n}\n"}},
		{"status accepting text", nil, get("/status", "Accept", "text/plain;q=0.9, */*"), reply{200, text, "version  v1\n"}},
		{
			"status accepting JSON before text", nil, get("/status", "Accept", "application/json", "Accept", "text/plain"),
			reply{200, js, "{\n  \"version\": \"v1\"\n}\n"},
		},
		{"status accepting anything", nil, get("/status", "Accept", "*/*"), reply{200, js, "{\n  \"version\": \"v1\"\n}\n"}},
		{
			"status accepting what cannot be read", nil, get("/status", "Accept", ";;;, text/plain"),
			reply{200, text, "version  v1\n"},
		},
		{"status in an unknown format", nil, get("/status?format=xml"), reply{400, text, "format \"xml\": neither text nor json\n"}},
		{
			"status that cannot be encoded", func(c *admin.Config) { c.Status = func() any { return func() {} } }, get("/status"),
			reply{500, text, "encoding the page: json: unsupported type: func()\n"},
		},
		{"probes: one that is well", checks(up, down), get("/healthcheck/cluster"), reply{200, text, "ok\n"}},
		{"probes: one that is not", checks(up, down), get("/healthcheck/outside"), reply{503, text, "SERVFAIL\nfrom? upstream\n"}},
		{
			"probes: one that is not known", checks(up, down), get("/healthcheck/other"),
			reply{404, text, "no probe has this label; see /healthcheck/\n"},
		},
		{"probes: all", checks(up, down), get("/healthcheck/"), reply{503, text, "cluster: ok\noutside: SERVFAIL from? upstream\n"}},
		{"probes: all well", checks(up), get("/healthcheck/"), reply{200, text, "cluster: ok\n"}},
		{"probes: none configured", checks(), get("/healthcheck/"), reply{200, text, ""}},
		{"probes: below one", checks(up), get("/healthcheck/cluster/x"), reply{404, text, "404 page not found\n"}},
		{"probes: no such pages", nil, get("/healthcheck/"), reply{404, text, "404 page not found\n"}},
		{"cache: none to read", nil, get("/cache/get?name=a"), reply{404, text, "404 page not found\n"}},
		{"cache: none to list", nil, get("/cache/top"), reply{404, text, "404 page not found\n"}},
		{"cache: none to flush", nil, post("/cache/flush?all=1"), reply{404, text, "404 page not found\n"}},
		{
			"a panic in the middle of a page", func(c *admin.Config) {
				c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					_, _ = io.WriteString(w, "a_total ")
					panic("lost")
				})
			}, get("/metrics"), reply{500, text, "internal error, see the log\n"},
		},
		{"no such page", nil, get("/nowhere"), reply{404, text, "404 page not found\n"}},
		{"below a page", nil, get("/status/x"), reply{404, text, "404 page not found\n"}},
		{"a profile that takes too long", nil, get("/debug/pprof/profile?seconds=301"), reply{400, text, "seconds: at most 300\n"}},
		{"a trace that takes no time at all", nil, get("/debug/pprof/trace?seconds=NaN"), reply{400, text, "seconds: at most 300\n"}},
		{"a trace that never ends", nil, get("/debug/pprof/trace?seconds=1e999"), reply{400, text, "seconds: at most 300\n"}},
		{
			"POST", nil, httptest.NewRequest(http.MethodPost, "http://localhost/status", nil),
			reply{405, text, "Method Not Allowed\n"},
		},
		{
			"a body", nil, httptest.NewRequest(http.MethodGet, "/status", strings.NewReader("x")),
			reply{413, text, "request bodies are not accepted\n"},
		},
		{
			"a body of unknown length", nil, httptest.NewRequest(http.MethodGet, "/status", io.MultiReader(strings.NewReader("x"))),
			reply{413, text, "request bodies are not accepted\n"},
		},
	} {
		got := ask(server(t, tc.change).Handler(), tc.request)
		if got.Type == "" { // as net/http would have it
			got.Type = http.DetectContentType([]byte(got.Body))
		}
		assert.Same(t, tc.name+": reply", tc.want, got)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	server(t, nil).Handler().ServeHTTP(w, get("/readyz"))
	want := http.Header{
		"Cache-Control":          {"no-store"},
		"Content-Type":           {"text/plain; charset=utf-8"},
		"X-Content-Type-Options": {"nosniff"},
	}
	assert.Same(t, "header", want, w.Header())
}

// TestFront passes what the server knows of a client to the page at / and to its script.
func TestFront(t *testing.T) {
	t.Parallel()
	elsewhere := get("/")
	elsewhere.RemoteAddr = "10.244.1.7:40000"
	for _, tc := range []struct {
		name    string
		change  func(*admin.Config)
		request *http.Request
		code    int
		want    string // the beginning
	}{
		{"a client on this host", nil, get("/"), 200, "local=true watch=false </status>"},
		{"a client elsewhere", nil, elsewhere, 200, "local=false watch=false </status>"},
		{"live queries", func(c *admin.Config) {
			c.Watch = func(url.Values) (<-chan []byte, func(), error) { return nil, nil, nil }
		}, get("/"), 200, "local=true watch=true"},
		{"the script", nil, get(admin.ScriptPath), 200, "local=true"},
		{"no page", func(c *admin.Config) { c.Front = nil }, get("/"), 404, "404 page not found"},
		{"no script", func(c *admin.Config) { c.Front = nil }, get(admin.ScriptPath), 404, "404 page not found"},
	} {
		if got := ask(server(t, tc.change).Handler(), tc.request); got.Code != tc.code || !strings.HasPrefix(got.Body, tc.want) {
			t.Errorf("%s: %+v, want %d %q", tc.name, got, tc.code, tc.want)
		}
	}
}

// TestIndex follows every link of the index.
func TestIndex(t *testing.T) {
	t.Parallel()
	h := server(t, nil).Handler()
	front := ask(h, get("/"))
	var links []string
	for _, m := range regexp.MustCompile(`<([^>]+)>`).FindAllStringSubmatch(front.Body, -1) {
		links = append(links, m[1])
		if got := ask(h, get(m[1])); got.Code != 200 || got.Body == "" {
			t.Errorf("%s: %d with %d bytes, want a page", m[1], got.Code, len(got.Body))
		}
	}
	want := []string{"/status", "/metrics", "/readyz", "/livez", "/debug/pprof/"}
	assert.Same(t, "links", want, links)
}

func TestPanic(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := server(t, func(c *admin.Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.Status = func() any { panic("no status today") }
	})
	got := ask(s.Handler(), get("/status"))
	if want := (reply{500, "text/plain; charset=utf-8", "internal error, see the log\n"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	assert.Same(t, "result", 1, s.Stats().Panics)
	for _, want := range []string{"where=admin", "path=/status", `panic="no status today"`, "handler_test.go"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %q:\n%s", want, log.String())
		}
	}
	if got := ask(s.Handler(), get("/readyz")); got.Code != 200 {
		t.Errorf("/readyz after it: %d, want 200", got.Code)
	}
}

func TestPanicWithinReply(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		defect any
		want   uint64 // panics counted
	}{
		{"a defect", "lost", 1},
		{"a reply given up", http.ErrAbortHandler, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := server(t, nil)
			h := s.Guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "a part of a profile")
				panic(tc.defect)
			}))
			defer func() {
				if got := recover(); got != http.ErrAbortHandler { //nolint:errorlint // net/http compares it like this
					t.Errorf("net/http is left with %v, want ErrAbortHandler, which breaks the connection", got)
				}
				assert.Same(t, "result", tc.want, s.Stats().Panics)
			}()
			ask(h, get("/debug/pprof/heap"))
		})
	}
}
