// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin"
)

// An echo is the page of a cache that returns its parameters.
type echo struct {
	Asked string `json:"asked"`
}

// echoing gives c a cache whose pages return their parameters. It refuses names that begin with "bad".
func echoing(c *admin.Config) {
	page := func(name, format string, args ...any) (any, error) {
		if strings.HasPrefix(name, "bad") {
			return nil, errors.New(name + ": not a domain name\x1b[2J")
		}
		return echo{fmt.Sprintf(format, args...)}, nil
	}
	c.Top = func(by string) (any, error) { return page(by, "top of pods by %s", by) }
	c.Cache = &admin.Cache{
		Get:   func(name, rrtype string) (any, error) { return page(name, "get %s %s", name, rrtype) },
		Top:   func(n int, by string) (any, error) { return page("", "top %d %s", n, by) },
		Flush: func(name string, zone bool) (any, error) { return page(name, "flush %s %t", name, zone) },
	}
	c.Kernel = &admin.Kernel{
		Status: func() any { return echo{"kernel"} },
		Set:    func(on bool) (any, error) { return page("", "kernel %t", on) },
	}
}

// post is get with another method.
func post(path string, header ...string) *http.Request {
	r := get(path, header...)
	r.Method = http.MethodPost
	return r
}

func TestCachePages(t *testing.T) {
	t.Parallel()
	const text, js = "text/plain; charset=utf-8", "application/json"
	asked := func(what string) reply { return reply{200, js, "{\n  \"asked\": \"" + what + "\"\n}\n"} }
	wrong := func(what string) reply { return reply{400, text, what + "\n"} }
	for _, tc := range []struct {
		name    string
		request *http.Request
		want    reply
	}{
		{"get", get("/cache/get?name=a.example."), asked("get a.example. ")},
		{"get a type", get("/cache/get?name=a.example.&type=AAAA"), asked("get a.example. AAAA")},
		{"get as text", get("/cache/get?name=a.example.&format=text"), reply{200, text, "asked  get a.example.\n"}},
		{"get accepting text", get("/cache/get?name=a", "Accept", "text/plain"), reply{200, text, "asked  get a\n"}},
		{"get nothing", get("/cache/get"), wrong("name: missing")},
		{"get a bad name", get("/cache/get?name=bad"), wrong("bad: not a domain name?[2J")},
		{"get two names", get("/cache/get?name=a&name=b"), wrong(`parameter "name": given more than once`)},
		{"get by an unknown parameter", get("/cache/get?names=a"), wrong(`parameter "names": unknown`)},
		{"get by a bad escape", get("/cache/get?name=%zz"), wrong(`parameters: invalid URL escape "%zz"`)},
		{"get in an unknown format", get("/cache/get?name=a&format=xml"), wrong(`format "xml": neither text nor json`)},
		{"get by POST", post("/cache/get?name=a"), reply{405, text, "Method Not Allowed\n"}},

		{"top", get("/cache/top"), asked("top 20 hits")},
		{"top by size", get("/cache/top?by=size&n=3"), asked("top 3 size")},
		{"top of most", get("/cache/top?n=1000"), asked("top 1000 hits")},
		{"top of too many", get("/cache/top?n=1001"), wrong(`n "1001": not a number from 1 to 1000`)},
		{"top of none", get("/cache/top?n=0"), wrong(`n "0": not a number from 1 to 1000`)},
		{"top of what is no number", get("/cache/top?n=many"), wrong(`n "many": not a number from 1 to 1000`)},
		{"top by age", get("/cache/top?by=age"), wrong(`by "age": neither hits nor size`)},
		{"top by nothing", get("/cache/top?by="), wrong(`by "": neither hits nor size`)},

		{"flush a name", post("/cache/flush?name=a."), asked("flush a. false")},
		{"flush a zone", post("/cache/flush?zone=b."), asked("flush b. true")},
		{"flush all", post("/cache/flush?all=1"), asked("flush . true")},
		{"flush a bad name", post("/cache/flush?name=bad"), wrong("bad: not a domain name?[2J")},
		{"flush nothing", post("/cache/flush"), wrong("give exactly one of name, zone, and all=1")},
		{"flush a name and a zone", post("/cache/flush?name=a&zone=b"), wrong("give exactly one of name, zone, and all=1")},
		{"flush a name and all", post("/cache/flush?name=a&all=1"), wrong("give exactly one of name, zone, and all=1")},
		{"flush not all", post("/cache/flush?all=0"), wrong(`all "0": must be 1`)},
		{"flush by GET", get("/cache/flush?all=1"), reply{405, text, "Method Not Allowed\n"}},
		{"the kernel", get("/kernel"), asked("kernel")},
		{"the kernel off", post("/kernel?hits=off"), asked("kernel false")},
		{"the kernel on, as text", post("/kernel?hits=on&format=text"), reply{200, text, "asked  kernel true\n"}},
		{"the kernel, but not to what", post("/kernel"), wrong(`hits "": neither on nor off`)},
		{"the kernel off by GET", get("/kernel?hits=off"), wrong(`parameter "hits": unknown`)},
		{"flush for a script", post("/cache/flush?all=1&format=yaml"), wrong(`format "yaml": neither text nor json`)},
	} {
		assert.Same(t, tc.name+": reply", tc.want, ask(server(t, echoing).Handler(), tc.request))
	}
}

// TestFlushTakesNoBody shows that a form cannot flush, and that nothing is flushed by a request that is refused.
func TestFlushTakesNoBody(t *testing.T) {
	t.Parallel()
	var flushed atomic.Int32
	h := server(t, func(c *admin.Config) {
		echoing(c)
		c.Cache.Flush = func(string, bool) (any, error) {
			flushed.Add(1)
			return echo{}, nil
		}
	}).Handler()
	r := httptest.NewRequest(http.MethodPost, "/cache/flush?all=1", strings.NewReader("all=1"))
	r.RemoteAddr, r.Host = "127.0.0.1:40000", "localhost"
	if got := ask(h, r); got.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("with a body: %d, want 413", got.Code)
	}
	for name, r := range map[string]*http.Request{
		"GET": get("/cache/flush?all=1"), "unknown format": post("/cache/flush?all=1&format=xml"),
		"an origin": post("/cache/flush?all=1", "Origin", "null"),
	} {
		if got := ask(h, r); got.Code < 400 {
			t.Errorf("%s: %d, want that it is refused", name, got.Code)
		}
	}
	if n := flushed.Load(); n != 0 {
		t.Errorf("flushed %d times by requests that were refused", n)
	}
	if ask(h, post("/cache/flush?all=1")); flushed.Load() != 1 {
		t.Errorf("flushed %d times by one good request", flushed.Load())
	}
}

// TestLocalPages sends requests for the pages of the cache and profiles as clients on the node and elsewhere, and as a
// browser that another site directs here.
func TestLocalPages(t *testing.T) {
	t.Parallel()
	type client struct {
		name   string
		from   string
		to     net.Addr // that the connection came to
		host   string
		header []string
		get    int
		post   int
	}
	tcp := func(addr string) net.Addr { a, _ := net.ResolveTCPAddr("tcp", addr); return a }
	for _, tc := range []client{
		{name: "loopback", from: "127.0.0.1:4", host: "127.0.0.1:9253", get: 200, post: 200},
		{name: "IPv6 loopback", from: "[::1]:4", host: "[::1]:9253", get: 200, post: 200},
		{name: "IPv6 without a port", from: "[::1]:4", host: "[::1]", get: 200, post: 200},
		{name: "localhost", from: "127.0.0.1:4", host: "LocalHost:9253", get: 200, post: 200},
		{name: "no host, HTTP/1.0", from: "127.0.0.1:4", get: 200, post: 200},
		{name: "the node to its own address", from: "169.254.20.10:4", to: tcp("169.254.20.10:9253"), host: "169.254.20.10:9253", get: 200, post: 200},
		{name: "another loopback address", from: "127.8.9.10:4", get: 200, post: 200},
		{name: "loopback to a listener of both families", from: "[::ffff:127.0.0.1]:4", to: tcp("[::ffff:127.0.0.1]:9253"), get: 200, post: 200},
		{name: "the node to its IPv6 address", from: "[fd00::10]:4", to: tcp("[fd00::10]:9253"), get: 200, post: 200},
		{name: "a pod with IPv6", from: "[2001:db8::7]:4", to: tcp("[2001:db8::10]:9253"), get: 403, post: 403},
		{name: "a pod, the listener's address unknown", from: "10.244.1.7:4", get: 403, post: 403},
		{name: "not an address", from: "pipe", to: tcp("127.0.0.1:9253"), get: 403, post: 403},
		{name: "no address", get: 403, post: 403},
		{name: "a pod", from: "10.244.1.7:4", to: tcp("169.254.20.10:9253"), host: "169.254.20.10:9253", get: 403, post: 403},
		{name: "a pod that claims another address", from: "10.244.1.7:4", to: tcp("10.0.0.1:9253"), host: "localhost", header: []string{"X-Forwarded-For", "127.0.0.1"}, get: 403, post: 403},
		{name: "over the socket", from: "@", to: &net.UnixAddr{Name: "/run/x", Net: "unix"}, host: "any.name", get: 200, post: 200},
		{name: "a name that was pointed here", from: "127.0.0.1:4", host: "evil.example:9253", get: 403, post: 403},
		{name: "a name like an address", from: "127.0.0.1:4", host: "127.0.0.1.evil.example:9253", get: 403, post: 403},
		{name: "a name like localhost", from: "127.0.0.1:4", host: "localhost.evil.example", get: 403, post: 403},
		{name: "a site's form", from: "127.0.0.1:4", host: "127.0.0.1:9253", header: []string{"Origin", "https://evil.example"}, get: 200, post: 403},
		{name: "a site that hides", from: "127.0.0.1:4", host: "127.0.0.1:9253", header: []string{"Origin", "null"}, get: 200, post: 403},
		{name: "a site's script", from: "127.0.0.1:4", host: "127.0.0.1:9253", header: []string{"Sec-Fetch-Site", "cross-site"}, get: 200, post: 403},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := server(t, echoing).Handler()
			pages := map[string]int{
				"POST /cache/flush?all=1": tc.post, "POST /kernel?hits=off": tc.post, "GET /kernel": tc.get, "GET /cache/top": tc.get, "GET /top": tc.get,
				"GET /debug/pprof/": tc.get, "GET /debug/pprof/heap": tc.get, "GET /debug/pprof/cmdline": tc.get, "GET /debug/pprof/symbol": tc.get,
			}
			if tc.get != http.StatusOK {
				pages["GET /debug/pprof/profile?seconds=1"], pages["GET /debug/pprof/trace?seconds=1"] = tc.get, tc.get
			}
			for page, want := range pages {
				method, path, _ := strings.Cut(page, " ")
				r := get(path, tc.header...)
				r.Method, r.RemoteAddr, r.Host = method, tc.from, tc.host
				if tc.to != nil {
					r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, tc.to))
				}
				got := ask(h, r)
				assert.Equal(t, page, want, got.Code)
				if want == http.StatusForbidden && !strings.Contains(got.Body, "\nhint: ") {
					t.Errorf("%s: %q, want a hint", page, got.Body)
				}
			}
		})
	}
}

// FuzzCacheParameters asks with any parameters. Whatever they are, a function of the cache is called with what the
// parameters say, or the request is refused with a text.
func FuzzCacheParameters(f *testing.F) {
	for _, query := range []string{"name=a.example.&type=A", "n=5&by=size", "all=1", "zone=.", "name=%00&all=1", "n=-1", "a=b;c=d", "format=text&name=%ff"} {
		f.Add(query)
	}
	s, err := admin.New(func() admin.Config {
		c := complete()
		echoing(&c)
		return c
	}())
	assert.NoError(f, err)
	h := s.Handler()
	f.Fuzz(func(t *testing.T, query string) {
		given, parseErr := url.ParseQuery(query)
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			for _, path := range []string{"/cache/get", "/cache/top", "/cache/flush"} {
				r := get(path)
				r.Method, r.URL.RawQuery = method, query
				got := ask(h, r)
				switch got.Code {
				case 200:
					if parseErr != nil || method == http.MethodPost && path == "/cache/flush" && len(given) == 0 {
						t.Fatalf("%s %s?%s: 200", method, path, query)
					}
					if name := given.Get("name"); path == "/cache/flush" && name != "" && (given.Has("zone") && given.Get("zone") != "" || given.Has("all")) {
						t.Fatalf("%s %s?%s: flushed, though more than one thing was named", method, path, query)
					}
				case 400, 405:
					if strings.TrimSpace(got.Body) == "" || strings.ContainsRune(got.Body, '\x1b') {
						t.Fatalf("%s %s?%s: %d with %q", method, path, query, got.Code, got.Body)
					}
				default:
					t.Fatalf("%s %s?%s: %d", method, path, query, got.Code)
				}
			}
		}
	})
}
