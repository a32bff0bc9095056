// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
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
		Status: func(bool) any { return map[string]any{"version": "v1"} },
		Front:  front,
	}
}

// front shows the view as a page that takes a millisecond.
func front(w http.ResponseWriter, _ *http.Request, v admin.View) {
	time.Sleep(time.Millisecond)
	_, _ = fmt.Fprintf(w, "token=%s watch=%t", v.Token, v.Watch)
	for _, p := range v.Pages {
		_, _ = fmt.Fprintf(w, " <%s>%t", p.Path, p.Private)
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

// overSocket returns a request as it comes over the unix socket.
func overSocket(r *http.Request) *http.Request {
	r.RemoteAddr = "@"
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.UnixAddr{Name: "/run/s", Net: "unix"}))
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
// any site can point one here. See TestAccess for the pages with a guard of their own.
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
			"status that cannot be encoded", func(c *admin.Config) { c.Status = func(bool) any { return func() {} } }, get("/status"),
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
		{"cache: none to read", nil, overSocket(get("/cache/get?name=a")), reply{404, text, "404 page not found\n"}},
		{"cache: none to list", nil, overSocket(get("/cache/top")), reply{404, text, "404 page not found\n"}},
		{"cache: none to flush", nil, overSocket(post("/cache/flush?all=1")), reply{404, text, "404 page not found\n"}},
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
		{"a profile that takes too long", nil, overSocket(get("/debug/pprof/profile?seconds=301")), reply{400, text, "seconds: at most 300\n"}},
		{"a trace that takes no time at all", nil, overSocket(get("/debug/pprof/trace?seconds=NaN")), reply{400, text, "seconds: at most 300\n"}},
		{"a trace that never ends", nil, overSocket(get("/debug/pprof/trace?seconds=1e999")), reply{400, text, "seconds: at most 300\n"}},
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
		"Referrer-Policy":        {"no-referrer"},
		"X-Content-Type-Options": {"nosniff"},
	}
	assert.Same(t, "header", want, w.Header())
}

// TestFront passes the token to the page at / of a client that has it, and to no other.
func TestFront(t *testing.T) {
	t.Parallel()
	watched := func(c *admin.Config) {
		c.Watch = func(url.Values) (<-chan []byte, func(), error) { return nil, nil, nil }
	}
	for _, tc := range []struct {
		name   string
		change func(*admin.Config)
		path   string
		socket bool
		code   int
		want   string // the beginning; TOKEN is the token
	}{
		{"without a token", nil, "/", false, 200, "token= watch=false </status>false"},
		{"with the token", nil, "/?token=TOKEN", false, 200, "token=TOKEN watch=false </status>false"},
		{"with the token of another process", nil, "/?token=" + rand.Text(), false, 200, "token= watch=false"},
		{"with an empty token", nil, "/?token=", false, 200, "token= watch=false"},
		{"over the socket", nil, "/", true, 200, "token=TOKEN watch=false"},
		{"live queries", watched, "/?token=TOKEN", false, 200, "token=TOKEN watch=true"},
		{"the script", nil, admin.ScriptPath, false, 200, "token="},
		{"no page", func(c *admin.Config) { c.Front = nil }, "/", false, 404, "404 page not found"},
		{"no script", func(c *admin.Config) { c.Front = nil }, admin.ScriptPath, false, 404, "404 page not found"},
	} {
		s := server(t, tc.change)
		r := get(strings.Replace(tc.path, "TOKEN", s.Token(), 1))
		if tc.socket {
			r = overSocket(r)
		}
		want := strings.Replace(tc.want, "TOKEN", s.Token(), 1)
		if got := ask(s.Handler(), r); got.Code != tc.code || !strings.HasPrefix(got.Body, want) {
			t.Errorf("%s: %+v, want %d %q", tc.name, got, tc.code, want)
		}
	}
}

// TestPageURL follows the address of the page for browsers.
func TestPageURL(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"127.0.0.1:0": "http://127.0.0.1:", "0.0.0.0:0": "http://localhost:", "[::]:0": "http://localhost:", "[::1]:0": "http://[::1]:",
	} {
		s := server(t, func(c *admin.Config) { echoing(c); c.Addr = netip.MustParseAddrPort(listen) })
		if err := s.Listen(t.Context()); err != nil {
			t.Logf("%s: %v", listen, err) // this machine lacks the IP family
			continue
		}
		t.Cleanup(s.Close)
		var page struct{ URL string }
		assert.NoError(t, json.Unmarshal([]byte(ask(s.Handler(), overSocket(get("/page"))).Body), &page))
		if !strings.HasPrefix(page.URL, want) || !strings.HasSuffix(page.URL, "/?token="+s.Token()) || len(s.Token()) < 26 {
			t.Errorf("%s: %s", listen, page.URL)
		}
		u, err := url.Parse(page.URL)
		assert.NoError(t, err)
		r := get("/cache/top?" + u.RawQuery)
		r.Host = u.Host
		assert.Equal(t, listen, 200, ask(s.Handler(), r).Code)
	}
	alone := server(t, onSocket("unused"))
	if got := ask(alone.Handler(), overSocket(get("/page"))); got.Code != 400 || !strings.Contains(got.Body, "admin.address") {
		t.Errorf("without an address: %+v", got)
	}
	if server(t, nil).Token() == alone.Token() {
		t.Error("two servers have the same token")
	}
}

// TestIndex follows every link of the index.
func TestIndex(t *testing.T) {
	t.Parallel()
	h := server(t, nil).Handler()
	front := ask(h, get("/"))
	var links []string
	for _, m := range regexp.MustCompile(`<([^>]+)>false`).FindAllStringSubmatch(front.Body, -1) {
		links = append(links, m[1])
		if got := ask(h, get(m[1])); got.Code != 200 || got.Body == "" {
			t.Errorf("%s: %d with %d bytes, want a page", m[1], got.Code, len(got.Body))
		}
	}
	want := []string{"/status", "/metrics", "/readyz", "/livez"}
	assert.Same(t, "links", want, links)
}

func TestPanic(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := server(t, func(c *admin.Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.Status = func(bool) any { panic("no status today") }
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
