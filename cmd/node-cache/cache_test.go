// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/cli"
)

// held is what the fake agent's cache holds.
func held() []status.CacheEntry {
	return []status.CacheEntry{
		{
			Name: "www.example.com.", Type: "A", State: "fresh", Rcode: "NOERROR", Age: 12, Left: 48, Hits: 1, Bytes: 144,
			Records: []string{"www.example.com. 48 IN CNAME web.example.net.", "web.example.net. 48 IN A 192.0.2.1"},
		},
		{
			Name: "www.example.com.", Type: "TXT", Flags: []string{"DO", "CD"}, Subnet: "192.0.2.0/24", State: "stale", Rcode: "NOERROR",
			Age: 3690, Left: -90, Hits: 65535, Bytes: 160, Records: []string{`www.example.com. 0 IN TXT "two words"`},
		},
		{Name: "gone.example.com.", Type: "*", State: "fresh", Rcode: "NXDOMAIN", Age: 1, Left: 29, Kept: true, Hits: 0, Bytes: 152},
	}
}

// fakeAgent is an admin server whose cache has the entries of held. It lists the requests in asked.
func fakeAgent(t *testing.T) (addr string, asked *[]string) {
	t.Helper()
	asked = new([]string)
	note := func(words ...string) { *asked = append(*asked, strings.Join(words, " ")) }
	pick := func(fits func(e *status.CacheEntry) bool) status.CacheView {
		list := slices.DeleteFunc(held(), func(e status.CacheEntry) bool { return !fits(&e) })
		return status.CacheView{Entries: list}
	}
	pages := &admin.Cache{
		Get: func(name, rrtype string) (any, error) {
			note("get", name, rrtype)
			if name == "refused." {
				return nil, errors.New("not today")
			}
			return pick(func(e *status.CacheEntry) bool { return e.Name == name && (rrtype == "" || e.Type == rrtype) }), nil
		},
		Top: func(n int, by string) (any, error) {
			note("top", by)
			return pick(func(e *status.CacheEntry) bool { return n > 1 || e.Type == "A" }), nil
		},
		Flush: func(name string, zone bool) (any, error) {
			note("flush", name, strconv.FormatBool(zone))
			return map[string]int{status.CacheFlushed: len(name) % 2}, nil
		},
	}
	s, err := admin.New(admin.Config{
		Socket: "unused", Metrics: http.NotFoundHandler(), Ready: func() error { return nil }, Status: func(bool) any { return nil }, Cache: pages,
	})
	must(t, err)
	return serveSocket(t, s.Handler()), asked
}

// serveSocket serves pages on a unix socket, and returns it as --admin takes it.
func serveSocket(t *testing.T, pages http.Handler) (addr string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	must(t, err)
	server := httptest.Server{Listener: l, Config: &http.Server{Handler: pages}}
	server.Start()
	t.Cleanup(server.Close)
	return "unix:" + path
}

// TestNotOnSocket has commands ask an agent by its address, where it shows neither pods nor queries and changes nothing.
func TestNotOnSocket(t *testing.T) {
	t.Parallel()
	s, err := admin.New(admin.Config{
		Socket: "unused", Metrics: http.NotFoundHandler(), Ready: func() error { return nil }, Status: func(bool) any { return nil },
		Cache: &admin.Cache{}, Kernel: &admin.Kernel{}, Top: func(string) (any, error) { return nil, nil },
		Watch: func(url.Values) (<-chan []byte, func(), error) { return nil, nil, nil },
	})
	must(t, err)
	server := httptest.NewServer(s.Handler())
	t.Cleanup(server.Close)
	for _, tt := range []struct{ args, hint string }{
		{"cache get a", "or use the unix socket admin.socket"},
		{"cache top", "or use the unix socket admin.socket"},
		{"top", "or use the unix socket admin.socket"},
		{"watch", "or use the unix socket admin.socket"},
		{"cache flush a", "use --admin unix:PATH"},
		{"kernel off", "use --admin unix:PATH"},
		{"kernel status", "use --admin unix:PATH"},
		{"page", "use --admin unix:PATH"},
	} {
		got := command(append(strings.Fields(tt.args), "--admin", server.Listener.Addr().String())...)
		if got.Code != cli.ExitFailed || got.Stdout != "" || !strings.Contains(got.Stderr, "\nhint: ") || !strings.Contains(got.Stderr, tt.hint) {
			t.Errorf("%s: %+v, want the hint %q", tt.args, got, tt.hint)
		}
	}
}

// TestPage prints the address of the page for browsers.
func TestPage(t *testing.T) {
	t.Parallel()
	const page = `{"url": "http://127.0.0.1:9253/?token=X\u001b"}`
	addr := serveSocket(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page) }))
	same(t, "text", result{cli.ExitOK, "http://127.0.0.1:9253/?token=X?\n", ""}, command("page", "--admin", addr))
	same(t, "for a program", result{cli.ExitOK, page, ""}, command("page", "--admin", addr, "-o", "json"))
}

func TestCacheCommands(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		args  []string
		asked string
		want  result
	}{
		{"a name", []string{"get", "www.example.com"}, "get www.example.com. ", result{cli.ExitOK, `www.example.com. A
  fresh, NOERROR, age 12s, left 48s, 1 hit, 144 bytes
  www.example.com.  48  IN  CNAME  web.example.net.
  web.example.net.  48  IN  A      192.0.2.1

www.example.com. TXT DO CD subnet 192.0.2.0/24
  stale, NOERROR, age 1h1m30s, expired 1m30s ago, 65535 hits or more, 160 bytes
  www.example.com.  0  IN  TXT  "two words"
`, ""}},
		{"a name and a type", []string{"get", "www.example.com.", "a"}, "get www.example.com. A", result{cli.ExitOK, `www.example.com. A
  fresh, NOERROR, age 12s, left 48s, 1 hit, 144 bytes
  www.example.com.  48  IN  CNAME  web.example.net.
  web.example.net.  48  IN  A      192.0.2.1
`, ""}},
		{"a name that does not exist", []string{"get", "gone.example.com"}, "get gone.example.com. ", result{cli.ExitOK, `gone.example.com. *
  fresh, NXDOMAIN, age 1s, kept by push, 0 hits, 152 bytes
`, ""}},
		{"a name that is not held", []string{"get", "other.example.com"}, "get other.example.com. ", result{exitNothing, "no entries\n", ""}},
		{"a type by number", []string{"get", "other.example.com", "type65"}, "get other.example.com. TYPE65", result{exitNothing, "no entries\n", ""}},
		{"nothing held, for a program", []string{"get", "--output", "json", "other.example.com"}, "get other.example.com. ", result{exitNothing, "{\n  \"entries\": []\n}\n", ""}},
		{"what is asked for most", []string{"top"}, "top hits", result{cli.ExitOK, `HITS   BYTES  STATE  RCODE     AGE      LEFT    NAME               TYPE
1      144    fresh  NOERROR   12s      48s     www.example.com.   A
65535  160    stale  NOERROR   1h1m30s  -1m30s  www.example.com.   TXT DO CD subnet 192.0.2.0/24
0      152    fresh  NXDOMAIN  1s       29s     gone.example.com.  *
`, ""}},
		{"what is largest, for a program", []string{"top", "-n", "1", "--by", "size", "--output", "json"}, "top size", result{cli.ExitOK, `{
  "entries": [
    {
      "name": "www.example.com.",
      "type": "A",
      "state": "fresh",
      "rcode": "NOERROR",
      "ageSeconds": 12,
      "leftSeconds": 48,
      "hits": 1,
      "bytes": 144,
      "records": [
        "www.example.com. 48 IN CNAME web.example.net.",
        "web.example.net. 48 IN A 192.0.2.1"
      ]
    }
  ]
}
`, ""}},
		{"forget a name", []string{"flush", "a"}, "flush a. false", result{cli.ExitOK, "no entry matched\n", ""}},
		{"forget another name", []string{"flush", "aa"}, "flush aa. false", result{cli.ExitOK, "removed: 1 entry\n", ""}},
		{"forget a zone", []string{"flush", "--zone", "b.example"}, "flush b.example. true", result{cli.ExitOK, "no entry matched\n", ""}},
		{"forget the root", []string{"flush", "--zone", "."}, "flush . true", result{cli.ExitOK, "removed: 1 entry\n", ""}},
		{"forget all, for a program", []string{"flush", "--all", "--output", "json"}, "flush . true", result{cli.ExitOK, "{\n  \"flushed\": 1\n}\n", ""}},
		{"the agent refuses", []string{"get", "refused"}, "get refused. ", result{cli.ExitFailed, "", "node-cache: asking the agent at ADDR for /cache/get: not today\n"}},
	} {
		addr, asked := fakeAgent(t)
		got := command(append([]string{"cache", "--admin", addr}, tt.args...)...)
		got.Stderr = strings.ReplaceAll(got.Stderr, addr, "ADDR")
		same(t, tt.name, tt.want, got)
		same(t, tt.name+": asked", []string{tt.asked}, *asked)
	}
}

// TestCacheNoAgent checks the messages when no agent answers.
func TestCacheNoAgent(t *testing.T) {
	t.Parallel()
	const noAgent = "hint: no agent listens there; set --admin or NODE_CACHE_ADMIN to its admin.address, or to unix: and its admin.socket\n"
	folder := t.TempDir()
	stale := filepath.Join(folder, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	text := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }))
	t.Cleanup(text.Close)
	many := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"entries":[`+strings.Repeat("{},", 1<<20)+"{}]}")
	}))
	t.Cleanup(many.Close)
	angry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
	}))
	t.Cleanup(angry.Close)
	for _, tt := range []struct{ name, admin, want string }{
		{"no listener", "127.0.0.1:1", `^node-cache: asking the agent at 127\.0\.0\.1:1: .*connection refused\n` + noAgent},
		{"no socket", "unix:" + folder + "/none", `^node-cache: asking the agent at unix:.*/none: .*no such file or directory\n` + noAgent},
		{"a socket without a listener", "unix:" + stale, `^node-cache: asking the agent at unix:.*/stale: .*connection refused\n` + noAgent},
		{"another server", other.Listener.Addr().String(), `^node-cache: asking the agent at \S+ for /cache/top: no such page\nhint: the server is not an agent, `},
		{"a server of pages", text.Listener.Addr().String(), `^node-cache: reading /cache/top of the agent at \S+: invalid character '<'`},
		{"a server of many entries", many.Listener.Addr().String(), `^node-cache: reading /cache/top of the agent at \S+: JSON with more than 262144 tokens`},
		{"a server with a long reason", angry.Listener.Addr().String(), `^node-cache: asking the agent at \S+ for /cache/top: x{1000}`},
	} {
		got := command("cache", "top", "--admin", tt.admin)
		if got.Code != cli.ExitFailed || got.Stdout != "" || len(got.Stderr) > 2*maxReason || !regexp.MustCompile(tt.want).MatchString(got.Stderr) {
			t.Errorf("%s: got %+v, want %s", tt.name, got, tt.want)
		}
	}
}
