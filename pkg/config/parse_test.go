// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/pkg/config"
)

// update rewrites what the tests compare with.
var update = flag.Bool("update", false, "rewrite testdata and docs/configuration.md")

// plain lets cmp look into a plan.
func plain() cmp.Option {
	return cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})
}

// with is the default plan after a change.
func with(change func(*config.Config)) config.Config {
	c := config.Default(config.Agent)
	change(&c)
	return c
}

// bounded is the default plan with other bounds on TTLs, which its route inherits.
func bounded(least, most, negative time.Duration) config.Config {
	return with(func(c *config.Config) {
		c.Cache.MinTTL, c.Cache.MaxTTL, c.Cache.NegativeTTL = least, most, negative
		c.Forward[0].MinTTL, c.Forward[0].MaxTTL, c.Forward[0].NegativeTTL = least, most, negative
	})
}

func TestParse(t *testing.T) {
	t.Parallel()
	local := netip.MustParseAddr("127.0.0.1")
	for _, tt := range []struct {
		name string
		text string
		want config.Config
	}{
		{name: "empty", text: "", want: config.Default(config.Agent)},
		{name: "comment only", text: "# nothing\n", want: config.Default(config.Agent)},
		{name: "empty document", text: "---\n...\n", want: config.Default(config.Agent)},
		{name: "directive", text: "%YAML 1.1\n--- # text\nlisten: {port: 53}\n", want: with(func(c *config.Config) { c.Listen.Port = 53 })},
		{name: "byte order mark", text: "\ufefflisten: {port: 53}\n", want: with(func(c *config.Config) { c.Listen.Port = 53 })},
		{name: "empty second document", text: "listen: {port: 53}\n---\n# end\n", want: with(func(c *config.Config) { c.Listen.Port = 53 })},
		{name: "line ends of Windows", text: "listen:\r\n  port: 53\r\n", want: with(func(c *config.Config) { c.Listen.Port = 53 })},
		{name: "keys without a value", text: "listen:\ncache: {size: , prefetch: ~}\nforward: null\n", want: config.Default(config.Agent)},
		{name: "JSON", text: `{"kind": "Config", "listen": {"port": 53}}`, want: with(func(c *config.Config) { c.Listen.Port = 53 })},
		{
			name: "anchors", text: "cache: {minTTL: &t 7s, failureTTL: *t}",
			want: func() config.Config {
				c := bounded(7*time.Second, time.Hour, 30*time.Second)
				c.Cache.FailureTTL = 7 * time.Second
				return c
			}(),
		},
		{
			name: "addresses of both families", text: "listen: {addresses: [127.0.0.1, '::1', 'fe80::1%eth0', 0:0::2]}",
			want: with(func(c *config.Config) {
				c.Listen.Addresses = []netip.Addr{
					local, netip.IPv6Loopback(), netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("::2"),
				}
			}),
		},
		{
			name: "every IPv4 address beside one of IPv6", text: "listen: {addresses: [0.0.0.0, '::1']}",
			want: with(func(c *config.Config) {
				c.Listen.Addresses = []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Loopback()}
			}),
		},
		{
			name: "largest numbers", text: "listen: {port: 65535, udpSize: 4096}\nlimits: {inflight: 1048576, waiting: 16777216}\n",
			want: with(func(c *config.Config) {
				c.Listen.Port, c.Listen.UDPSize = 65535, 4096
				c.Limits.Inflight, c.Limits.Waiting = 1<<20, 1<<24
			}),
		},
		{
			name: "every spelling of a target",
			text: "forward: [{zone: ., to: [192.0.2.1, '192.0.2.1:5353', 'udp://192.0.2.2', 'tcp://192.0.2.1', " +
				"'tcp://192.0.2.1:54', '2001:db8::1', '[2001:db8::2]', '[2001:db8::1]:54', 'tcp://[2001:db8::1]', " +
				"'fe80::1%eth0', /run//resolv/../resolv.conf]}]",
			want: with(func(c *config.Config) {
				c.Forward[0].To = []config.Target{
					{Addr: netip.MustParseAddrPort("192.0.2.1:53")},
					{Addr: netip.MustParseAddrPort("192.0.2.1:5353")},
					{Addr: netip.MustParseAddrPort("192.0.2.2:53")},
					{Kind: config.TCP, Addr: netip.MustParseAddrPort("192.0.2.1:53")},
					{Kind: config.TCP, Addr: netip.MustParseAddrPort("192.0.2.1:54")},
					{Addr: netip.MustParseAddrPort("[2001:db8::1]:53")},
					{Addr: netip.MustParseAddrPort("[2001:db8::2]:53")},
					{Addr: netip.MustParseAddrPort("[2001:db8::1]:54")},
					{Kind: config.TCP, Addr: netip.MustParseAddrPort("[2001:db8::1]:53")},
					{Addr: netip.MustParseAddrPort("[fe80::1%eth0]:53")},
					{Kind: config.ResolvConf, Path: "/run/resolv.conf"},
				}
			}),
		},
		{
			name: "routes keep their order",
			text: "forward:\n- {zone: Example.COM, to: [192.0.2.1], clientSubnet: pass}\n" +
				"- {zone: ., to: [192.0.2.2], clientSubnet: remove}\n- {zone: 0/25.2.0.192.in-addr.arpa., to: [192.0.2.3]}\n" +
				"- {zone: _tcp.my-zone, to: [192.0.2.3]}\n",
			want: with(func(c *config.Config) {
				to := func(a string) config.Target {
					return config.Target{Addr: netip.AddrPortFrom(netip.MustParseAddr(a), 53)}
				}
				c.Forward = []config.Route{
					config.DefaultRoute("example.com.", to("192.0.2.1")),
					config.DefaultRoute(".", to("192.0.2.2")),
					config.DefaultRoute("0/25.2.0.192.in-addr.arpa.", to("192.0.2.3")),
					config.DefaultRoute("_tcp.my-zone.", to("192.0.2.3")),
				}
				c.Forward[0].ClientSubnet = true
			}),
		},
		{
			name: "the longest name", text: "forward: [{zone: ., to: ['::1']}, {zone: " + strings.Repeat("a.", 126) + "b, to: ['::1']}]",
			want: with(func(c *config.Config) {
				to := []config.Target{{Addr: netip.MustParseAddrPort("[::1]:53")}}
				c.Forward = []config.Route{config.DefaultRoute(".", to...), config.DefaultRoute(strings.Repeat("a.", 126)+"b.", to...)}
			}),
		},
		{name: "bytes", text: "cache: {size: 1048577}", want: with(func(c *config.Config) { c.Cache.Size = 1<<20 + 1 })},
		{name: "bytes in quotes", text: "cache: {size: '2000000'}", want: with(func(c *config.Config) { c.Cache.Size = 2_000_000 })},
		{name: "kibibytes", text: "cache: {size: 1024Ki}", want: with(func(c *config.Config) { c.Cache.Size = 1 << 20 })},
		{name: "gibibytes", text: "cache: {size: 3Gi}", want: with(func(c *config.Config) { c.Cache.Size = 3 << 30 })},
		{name: "a tebibyte", text: "cache: {size: 1Ti}", want: with(func(c *config.Config) { c.Cache.Size = 1 << 40 })},
		{name: "kilobytes", text: "cache: {size: 2000k}", want: with(func(c *config.Config) { c.Cache.Size = 2_000_000 })},
		{name: "megabytes", text: "cache: {size: 64M}", want: with(func(c *config.Config) { c.Cache.Size = 64_000_000 })},
		{name: "gigabytes", text: "cache: {size: 1G}", want: with(func(c *config.Config) { c.Cache.Size = 1_000_000_000 })},
		{
			name: "durations", text: "cache: {minTTL: 0s, maxTTL: 168h, negativeTTL: 1m30s}\nlimits: {deadline: 2.5s, tcpIdle: 1h0m}",
			want: func() config.Config {
				c := bounded(0, 168*time.Hour, 90*time.Second)
				c.Limits.Deadline, c.Limits.TCPIdle = 2500*time.Millisecond, time.Hour
				return c
			}(),
		},
		{
			name: "percentage with decimals", text: "cache: {prefetch: {hits: 0, remaining: 12.25%}}",
			want: with(func(c *config.Config) { c.Cache.Prefetch = config.Prefetch{Hits: 0, Remaining: 0.1225} }),
		},
		{
			name: "stale answers, longest", text: "cache: {serveStale: {for: 72h, ttl: 5m, after: 29999ms}, nxdomainCut: off}\nlimits: {deadline: 30s}",
			want: with(func(c *config.Config) {
				c.Cache.ServeStale = config.ServeStale{For: 72 * time.Hour, TTL: 5 * time.Minute, After: 29999 * time.Millisecond}
				c.Cache.NXDomainCut, c.Limits.Deadline = false, 30*time.Second
			}),
		},
		{
			name: "no stale answers, later than the deadline", text: "cache: {serveStale: {for: 0s, ttl: 1s, after: 30s}, nxdomainCut: 'on'}",
			want: with(func(c *config.Config) {
				c.Cache.ServeStale = config.ServeStale{For: 0, TTL: time.Second, After: 30 * time.Second}
			}),
		},
		{
			name: "snapshot, least", text: "snapshot: {folder: state/../kept/, period: 10s, size: 1Mi, maxAge: 1m}",
			want: with(func(c *config.Config) {
				c.Snapshot = config.Snapshot{Folder: "kept", Period: 10 * time.Second, Size: 1 << 20, MaxAge: time.Minute}
			}),
		},
		{
			name: "snapshot, most", text: "snapshot: {folder: /run/node-cache, period: 1h, size: 1Gi, maxAge: 168h}",
			want: with(func(c *config.Config) {
				c.Snapshot = config.Snapshot{Folder: "/run/node-cache", Period: time.Hour, Size: 1 << 30, MaxAge: 168 * time.Hour}
			}),
		},
		{name: "one query of a client", text: "limits: {perClient: 1}", want: with(func(c *config.Config) { c.Limits.PerClient = 1 })},
		{
			name: "more queries of a client than wait", text: "limits: {perClient: 16777216}",
			want: with(func(c *config.Config) { c.Limits.PerClient = 1 << 24 }),
		},
		{
			name: "the longest socket", text: "admin: {socket: /" + strings.Repeat("s", 104) + "/../" + strings.Repeat("s", 106) + "}",
			want: with(func(c *config.Config) { c.Admin.Socket = "/" + strings.Repeat("s", 106) }),
		},
		{
			name: "names of the admin server", text: "admin: {hosts: [Node-Cache.kube-system.svc., dns]}",
			want: with(func(c *config.Config) { c.Admin.Hosts = []string{"node-cache.kube-system.svc", "dns"} }),
		},
		{name: "no socket", text: "admin: {socket: ''}", want: config.Default(config.Agent)},
		{
			name: "identity", text: "identity: {version: 'node-cache \"1\"', hostname: auto}",
			want: with(func(c *config.Config) { c.Identity = config.Identity{Version: `node-cache "1"`, Hostname: "auto"} }),
		},
		{name: "no admin server", text: "admin: {address: ''}", want: with(func(c *config.Config) { c.Admin = config.Admin{} })},
		{
			name: "admin on the port of another address", text: "admin: {address: '[::1]:1053'}",
			want: with(func(c *config.Config) { c.Admin.Address = netip.MustParseAddrPort("[::1]:1053") }),
		},
		{
			name: "log", text: "log: {level: warn, format: text, queries: sample=100}",
			want: with(func(c *config.Config) {
				c.Log = config.Log{
					Level: slog.LevelWarn, Format: "text",
					Queries: config.QueryLog{Mode: config.QueriesSample, Sample: 100},
				}
			}),
		},
		{name: "queries off in quotes", text: "log: {queries: 'off'}", want: config.Default(config.Agent)},
		{name: "queries off as YAML reads it", text: "log: {queries: off}", want: config.Default(config.Agent)},
		{name: "queries errors", text: "log: {queries: errors}", want: with(func(c *config.Config) { c.Log.Queries.Mode = config.QueriesErrors })},
		{name: "queries slow", text: "log: {queries: slow}", want: with(func(c *config.Config) { c.Log.Queries.Mode = config.QueriesSlow })},
		{name: "queries all", text: "log: {queries: all}", want: with(func(c *config.Config) { c.Log.Queries.Mode = config.QueriesAll })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := config.Parse([]byte(tt.text), config.Agent)
			must(t, err)
			same(t, "Parse", tt.want, got, plain())
			roundTrip(t, got, config.Agent)
		})
	}
}

// roundTrip fails unless a plan survives Marshal and Parse.
func roundTrip(t *testing.T, c config.Config, role config.Role) {
	t.Helper()
	text, err := config.Marshal(c)
	must(t, err)
	again, err := config.Parse(text, role)
	if err != nil {
		t.Fatalf("Parse of\n%s: %v", text, err)
	}
	same(t, "after Marshal", c, again, plain())
	if _, err := config.MarshalChanges(c, role, nil); err != nil { // which reads it again itself
		t.Errorf("MarshalChanges: %v", err)
	}
}

func TestParseBad(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/bad-*.yaml")
	must(t, err)
	if len(files) < 25 {
		t.Fatalf("found %d bad files, want at least 25", len(files))
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			must(t, err)
			role := config.Agent
			if strings.HasPrefix(filepath.Base(file), "bad-resolver-") {
				role = config.Resolver
			}
			c, err := config.Parse(data, role)
			if _, ok := errors.AsType[*config.Error](err); !ok {
				t.Fatalf("Parse: error %v, want a *config.Error", err)
			}
			same(t, "plan beside an error", config.Config{}, c, plain())
			golden(t, strings.TrimSuffix(file, ".yaml")+".txt", err.Error()+"\n")
		})
	}
}

// golden compares got with a file, or writes the file under -update.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	same(t, file+", rewritten with -update", string(want), got)
}

func TestParseBadText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text, want string
	}{
		{name: "not UTF-8", text: "listen:\n  port: \xff\n", want: "line 2:9: not UTF-8 text"},
		{name: "UTF-16", text: "\xff\xfea\x00:\x00", want: "line 1:1: not UTF-8 text"},
		{name: "control character", text: "a: 1\r\n\x00", want: "line 2:1: control character U+0000"},
		{name: "too large", text: strings.Repeat("#", 1<<20+1), want: "larger than 1Mi"},
		{name: "deep", text: "a: " + strings.Repeat("[", 9999) + strings.Repeat("]", 9999), want: "line 1:1: a: unknown key"},
		{
			name: "too deep", text: "a: " + strings.Repeat("[", 10001),
			want: "line 1:10004: YAML: exceeded max depth of 10000\n  hint: check the indentation and the brackets, and quote an IPv6 address",
		},
		{name: "separator of YAML 1.1", text: "a: 1\u2028---\u2028b: 1\n", want: "line 3:1: a second document\n  hint: one file holds one configuration"},
		{name: "second document after an end", text: "kind: Config\n...\nb: 1\n", want: "line 3:1: YAML: did not find expected <document start>\n  hint: one file holds one configuration"},
		{name: "second document on its marker", text: "--- {}\n--- {}\n", want: "line 2:5: a second document\n  hint: one file holds one configuration"},
		{name: "a mistake in the first line", text: "listen: }", want: "line 1:9: YAML: did not find expected node content\n  hint: check the indentation and the brackets, and quote an IPv6 address"},
		{name: "a longer name than fits", text: "forward: [{zone: " + strings.Repeat("a.", 126) + "bb, to: [192.0.2.1]}, {zone: ., to: [192.0.2.1]}]", want: `line 1:18: forward[0].zone: "` + strings.Repeat("a.", 32) + `"...: not a zone: longer than 255 bytes`},
		{name: "a long key", text: strings.Repeat("k", 100) + ": 1", want: `line 1:1: ["` + strings.Repeat("k", 64) + `"...]: unknown key`},
		{
			name: "a long value is cut between letters", text: "log: {format: " + strings.Repeat("x", 63) + "éé}",
			want: `line 1:15: log.format: "` + strings.Repeat("x", 63) + `"...: not json or text`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := config.Parse([]byte(tt.text), config.Agent)
			if err == nil {
				t.Fatal("Parse: no error")
			}
			same(t, "error", tt.want, err.Error())
		})
	}
}

func TestParseReportIsBounded(t *testing.T) {
	t.Parallel()
	_, err := config.Parse([]byte("listen: {addresses: ["+strings.Repeat("x,", 1000)+"]}"), config.Agent)
	problems, ok := errors.AsType[*config.Error](err)
	if !ok {
		t.Fatalf("Parse: error %v, want a *config.Error", err)
	}
	want := config.Problem{What: "900 more problems"}
	if diff := cmp.Diff(want, problems.Problems[100]); diff != "" || len(problems.Problems) != 101 {
		t.Errorf("%d problems, the last (-want +got):\n%s", len(problems.Problems), diff)
	}
}

// TestParseBoundsAliases has aliases of a few bytes each that stand for much.
func TestParseBoundsAliases(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"in a list":  "listen: &a [" + strings.Repeat("x, ", 2000) + "]\nforward: [" + strings.Repeat("*a, ", 2000) + "]",
		"in mergers": "listen: &a {" + strings.Repeat("port: 1, ", 2000) + "}\nforward: [" + strings.Repeat("{<<: [*a, *a]}, ", 1000) + "]",
	} {
		_, err := config.Parse([]byte(text), config.Agent)
		problems, ok := errors.AsType[*config.Error](err)
		if !ok || !slices.ContainsFunc(problems.Problems, func(p config.Problem) bool { return p.What == "too many aliases" }) {
			t.Errorf("%s: error %.200v, want one about aliases", name, err)
		}
	}
}

// TestParseBoundsSearch has a syntax error at the end of a large text. Its place is not searched for by more parses: the error
// takes fewer allocations than reading the text without the error.
func TestParseBoundsSearch(t *testing.T) {
	text := []byte("hosts:\n  names:\n" + strings.Repeat("  - {name: a.example, addresses: [192.0.2.1]}\n", 20_000))
	var err error
	valid := testing.AllocsPerRun(1, func() { _, err = config.Parse(text, config.Agent) })
	if err == nil || strings.Contains(err.Error(), "YAML") {
		t.Fatalf("error %v, want one about names that are there twice", err)
	}
	text = append(text, "listen: }\n"...)
	failing := testing.AllocsPerRun(1, func() { _, err = config.Parse(text, config.Agent) })
	const want = "line 20002:1: YAML: did not find expected node content\n  hint: the line may be wrong by one"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if failing > valid {
		t.Errorf("%.0f allocations, and %.0f without the syntax error", failing, valid)
	}
}

// TestParseMerges has merge keys: a mapping gets the keys of others that it does not have itself.
func TestParseMerges(t *testing.T) {
	t.Parallel()
	got, err := config.Parse([]byte("forward:\n- &a {zone: a, to: [192.0.2.1], rate: 7, connections: 3}\n- {<<: *a, zone: b, rate: 8}\n- {<<: [{zone: .}, *a]}\n"), config.Agent)
	must(t, err)
	var shown []string
	for _, r := range got.Forward {
		shown = append(shown, fmt.Sprint(r.Zone, r.To, r.Rate, r.Connections))
	}
	same(t, "routes", []string{"a.[192.0.2.1] 7 3", "b.[192.0.2.1] 8 3", ".[192.0.2.1] 7 3"}, shown)
	for name, text := range map[string]string{"itself": "listen: &a {<<: *a}", "a scalar": "listen: {<<: 7}"} {
		if _, err := config.Parse([]byte(text), config.Agent); err == nil || !strings.Contains(err.Error(), "listen: cannot be merged") {
			t.Errorf("%s: error %v, want one about merging", name, err)
		}
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, []byte("listen: {port: 53}"), 0o600))
	got, err := config.Load(file, config.Agent)
	must(t, err)
	same(t, "Load", with(func(c *config.Config) { c.Listen.Port = 53 }), got, plain())
}

func TestLoadNamesTheFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, []byte("listen: {port: 0}\ncach: {}"), 0o600))
	_, err := config.Load(file, config.Agent)
	want := &config.Error{Path: file, Problems: []config.Problem{
		{Line: 1, Column: 16, Path: "listen.port", What: "0: not between 1 and 65535", Hint: "the default is 1053"},
		{Line: 2, Column: 1, Path: "cach", What: "unknown key", Hint: `did you mean "cache"?`},
	}}
	got, ok := errors.AsType[*config.Error](err)
	if !ok {
		t.Fatalf("Load: error %v, want a *config.Error", err)
	}
	same(t, "Load", want, got)
	text := file + ":1:16: listen.port: 0: not between 1 and 65535\n  hint: the default is 1053\n" + file + ":2:1: cach: unknown key\n  hint: did you mean \"cache\"?"
	same(t, "message", text, err.Error())
}

func TestLoadUnreadable(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if _, err := config.Load(filepath.Join(folder, "none.yaml"), config.Agent); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: error %v, want one that is fs.ErrNotExist", err)
	}
	if _, err := config.Load(folder, config.Agent); err == nil || !strings.HasPrefix(err.Error(), "reading the configuration: ") {
		t.Errorf("a folder: error %v, want one about reading", err)
	}
}

func TestDefaultIsNotShared(t *testing.T) {
	t.Parallel()
	c := config.Default(config.Agent)
	c.Listen.Addresses[0] = netip.IPv6Loopback()
	c.Forward[0].To[0].Path = "/elsewhere"
	if got := config.Default(config.Agent); got.Listen.Addresses[0] == c.Listen.Addresses[0] || got.Forward[0].To[0] == c.Forward[0].To[0] {
		t.Errorf("a change of one Default shows in the next: %+v", got)
	}
}

// same compares what a test wants with what it got.
func same[T any](tb testing.TB, what string, want, got T, options ...cmp.Option) {
	tb.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// must ends the test at an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
