// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"crypto/rand"
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
		assert.Same(t, tc.name+": reply", tc.want, ask(server(t, echoing).Handler(), overSocket(tc.request)))
	}
}

// TestFlushTakesNoBody shows that a form cannot flush, and that nothing is flushed by a request that is refused.
func TestFlushTakesNoBody(t *testing.T) {
	t.Parallel()
	var flushed atomic.Int32
	s := server(t, func(c *admin.Config) {
		echoing(c)
		c.Cache.Flush = func(string, bool) (any, error) {
			flushed.Add(1)
			return echo{}, nil
		}
	})
	h := s.Handler()
	r := httptest.NewRequest(http.MethodPost, "/cache/flush?all=1", strings.NewReader("all=1"))
	if got := ask(h, overSocket(r)); got.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("with a body: %d, want 413", got.Code)
	}
	for name, r := range map[string]*http.Request{
		"GET": overSocket(get("/cache/flush?all=1")), "unknown format": overSocket(post("/cache/flush?all=1&format=xml")),
		"not over the socket": post("/cache/flush?all=1"), "with a token": post("/cache/flush?all=1&token=" + s.Token()),
	} {
		if got := ask(h, r); got.Code < 400 {
			t.Errorf("%s: %d, want that it is refused", name, got.Code)
		}
	}
	if n := flushed.Load(); n != 0 {
		t.Errorf("flushed %d times by requests that were refused", n)
	}
	if ask(h, overSocket(post("/cache/flush?all=1"))); flushed.Load() != 1 {
		t.Errorf("flushed %d times by one good request", flushed.Load())
	}
}

// TestAccess sends requests for all kinds of pages by the ways on which they come: over the socket, from this host, by a relay on this
// host, and by a browser that another site directs here.
func TestAccess(t *testing.T) {
	t.Parallel()
	tcp := func(addr string) net.Addr { a, _ := net.ResolveTCPAddr("tcp", addr); return a }
	const here, relay = "127.0.0.1:4", "169.254.20.10:4"
	none := []string{}
	for _, tc := range []struct {
		name   string
		from   string
		to     net.Addr // that the connection came to
		host   string
		header []string
		// codes of pages that are open, the same with the token, of those that name pods and queries, the same with the token, and of
		// those that change or profile
		open, openToken, private, token, socket int
	}{
		{"over the socket", "@", &net.UnixAddr{Name: "/run/x", Net: "unix"}, "any.name", none, 200, 200, 200, 200, 200},
		{"loopback", here, nil, "127.0.0.1:9253", none, 200, 200, 403, 200, 403},
		{"IPv6 loopback", "[::1]:4", nil, "[::1]:9253", none, 200, 200, 403, 200, 403},
		{"no host, HTTP/1.0", here, nil, "", none, 200, 200, 403, 200, 403},
		{"a relay on this host", relay, tcp("169.254.20.10:9253"), "169.254.20.10:9253", none, 200, 200, 403, 200, 403},
		{"a relay that says so", relay, tcp("169.254.20.10:9253"), "169.254.20.10:9253", []string{"X-Forwarded-For", "10.244.1.7"}, 200, 200, 403, 200, 403},
		{"a pod", "10.244.1.7:4", tcp("169.254.20.10:9253"), "169.254.20.10:9253", none, 200, 200, 403, 200, 403},
		{"a pod that claims an address", "10.244.1.7:4", tcp("10.0.0.1:9253"), "localhost", []string{"X-Forwarded-For", "127.0.0.1"}, 200, 200, 403, 200, 403},
		{"a pod that claims the socket", "10.244.1.7:4", tcp("10.0.0.1:9253"), "/run/x", []string{"Forwarded", "for=unix"}, 403, 403, 403, 403, 403},
		{"an address that is none", "@", tcp("10.0.0.1:9253"), "localhost", none, 200, 200, 403, 200, 403},
		{"a name that was pointed here", here, nil, "evil.example:9253", none, 403, 403, 403, 403, 403},
		{"a name like an address", here, nil, "127.0.0.1.evil.example:9253", none, 403, 403, 403, 403, 403},
		{"a name like localhost", here, nil, "localhost.evil.example", none, 403, 403, 403, 403, 403},
		{"the page itself", here, nil, "127.0.0.1:9253", []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "cors"}, 200, 200, 403, 200, 403},
		{"a typed address", here, nil, "127.0.0.1:9253", []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate"}, 200, 200, 403, 200, 403},
		{"its origin", here, nil, "127.0.0.1:9253", []string{"Origin", "http://127.0.0.1:9253"}, 200, 200, 403, 200, 403},
		{"the origin of another port", here, nil, "127.0.0.1:9253", []string{"Origin", "http://127.0.0.1:8080"}, 403, 403, 403, 403, 403},
		{"a site's form", here, nil, "127.0.0.1:9253", []string{"Origin", "https://evil.example"}, 403, 403, 403, 403, 403},
		{"a site that hides", here, nil, "127.0.0.1:9253", []string{"Origin", "null"}, 403, 403, 403, 403, 403},
		{"a site's image", here, nil, "127.0.0.1:9253", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, 403, 403, 403, 403, 403},
		{"an image of another port", here, nil, "127.0.0.1:9253", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}, 403, 403, 403, 403, 403},
		{"a kind of site to come", here, nil, "127.0.0.1:9253", []string{"Sec-Fetch-Site", "same-galaxy"}, 403, 403, 403, 403, 403},
		{"a site's frame", here, nil, "127.0.0.1:9253", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, 403, 403, 403, 403, 403},
		{"a site's link", here, nil, "127.0.0.1:9253", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 403, 403, 403, 403, 403},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := server(t, func(c *admin.Config) {
				echoing(c)
				c.Watch = func(url.Values) (<-chan []byte, func(), error) { return nil, nil, errors.New("no watch") }
			})
			h := s.Handler()
			check := func(page string, want int) {
				t.Helper()
				method, path, _ := strings.Cut(page, " ")
				r := get(path, tc.header...)
				r.Method, r.RemoteAddr, r.Host = method, tc.from, tc.host
				if tc.to != nil {
					r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, tc.to))
				}
				got := ask(h, r)
				if strings.Contains(page, " /watch") && got.Code == 400 {
					got.Code = 200 // what its function returns
				}
				assert.Equal(t, page, want, got.Code)
				if want == http.StatusForbidden && !strings.Contains(got.Body, "\nhint: ") {
					t.Errorf("%s: %q, want a hint", page, got.Body)
				}
				if strings.Contains(got.Body, s.Token()) && want == http.StatusForbidden {
					t.Errorf("%s: the reply has the token", page)
				}
			}
			for _, path := range []string{"/status", "/metrics", "/livez", "/readyz"} {
				check("GET "+path, tc.open)
				check("GET "+path+"?token="+s.Token(), tc.openToken)
			}
			for _, path := range []string{"/cache/top?", "/cache/get?name=a&", "/top?", "/watch?"} {
				check("GET "+path, tc.private)
				check("HEAD "+path, tc.private)
				check("GET "+path+"token=", tc.private)
				check("GET "+path+"token="+s.Token()[1:], tc.private)
				check("GET "+path+"token="+rand.Text(), tc.private)
				check("GET "+path+"token="+s.Token(), tc.token)
			}
			for _, path := range []string{
				"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline", "/debug/pprof/symbol", "/debug/pprof/profile?seconds=1", "/kernel", "/page",
			} {
				want := tc.socket
				if path == "/page" && want == 200 {
					want = 400 // this server has no address
				}
				check("GET "+path, want)
				check("GET "+path+map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")]+"token="+s.Token(), want)
			}
			check("POST /cache/flush?all=1", tc.socket)
			check("POST /kernel?hits=off", tc.socket)
			check("POST /kernel?hits=off&token="+s.Token(), tc.socket)
		})
	}
}

// TestLink follows a link of another site to the page /, which costs little and changes nothing.
func TestLink(t *testing.T) {
	t.Parallel()
	link := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Sec-Fetch-User", "?1"}
	h := server(t, nil).Handler()
	assert.Equal(t, "a link", 200, ask(h, get("/", link...)).Code)
	assert.Equal(t, "a form", 403, ask(h, get("/", append(link, "Origin", "https://evil.example")...)).Code)
	assert.Equal(t, "a form by POST", 403, ask(h, post("/", link...)).Code)
	assert.Equal(t, "a script of the page", 403, ask(h, get(admin.ScriptPath, link...)).Code)
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
				got := ask(h, overSocket(r))
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
