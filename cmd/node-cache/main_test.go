// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// result is what a command line did.
type result struct {
	Code           int
	Stdout, Stderr string
}

func command(args ...string) result {
	var stdout, stderr bytes.Buffer
	code := run(args, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// file writes a configuration file and gives its path.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUsage(t *testing.T) {
	t.Parallel()
	const hint = "hint: `node-cache --help` lists commands and flags\n"
	for _, tt := range []struct {
		name string
		args []string
		want string // the first line of standard error
	}{
		{"unknown command", []string{"serve"}, `node-cache: unknown command "serve" for "node-cache"`},
		{"unknown flag", []string{"agent", "--colour"}, "node-cache: unknown flag: --colour"},
		{"too many files", []string{"check", "a", "b"}, "node-cache: accepts at most 1 arg(s), received 2"},
		{"nothing to check", []string{"check"}, "node-cache: check: missing FILE, or --print for the defaults"},
		{"no name", []string{"query"}, "node-cache: accepts between 1 and 2 arg(s), received 0"},
		{"a name that is none", []string{"query", "a..b"}, `node-cache: "a..b": not a domain name`},
		{"a type that is none", []string{"query", "a.b", "BOGUS"}, `node-cache: "BOGUS": not a record type`},
		{"a server that is none", []string{"query", "--server", "localhost", "a.b"}, `node-cache: --server "localhost": not an IP address with or without a port`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(result{exitUsage, "", tt.want + "\n" + hint}, command(tt.args...)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	good := file(t, "cache: {size: 128Mi}\n")
	if diff := cmp.Diff(result{exitOK, good + ": ok\n", ""}, command("check", good)); diff != "" {
		t.Errorf("a good file (-want +got):\n%s", diff)
	}
	bad := file(t, "listen: {port: 99999, addresses: [nowhere]}\ncache: {size: 1, maxTTL: 1}\nfoo: 1\n")
	got := command("check", bad)
	want := strings.ReplaceAll(`node-cache: FILE:1:16: listen.port: 99999: not between 1 and 65535
node-cache: FILE:1:35: listen.addresses[0]: "nowhere": not an IP address
node-cache: FILE:2:15: cache.size: 1: not between 1Mi and 1Ti
node-cache: FILE:2:26: cache.maxTTL: 1: not a duration
node-cache: FILE:3:1: foo: unknown key`, "FILE", bad)
	var lines []string
	for line := range strings.Lines(got.Stderr) {
		if !strings.HasPrefix(line, "hint: ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	order := strings.Split(want, "\n")
	if got.Code != exitFailed || got.Stdout != "" || !sameLines(order, lines) {
		t.Errorf("five mistakes: code %d\n%s", got.Code, cmp.Diff(order, lines))
	}
	missing := command("check", filepath.Join(t.TempDir(), "none.yaml"))
	if missing.Code != exitFailed || !strings.Contains(missing.Stderr, "no such file or directory\nhint: give the path of an existing file;") {
		t.Errorf("a missing file: %+v", missing)
	}
}

// sameLines compares two lists of lines, their order aside.
func sameLines(a, b []string) bool {
	left := map[string]int{}
	for _, line := range a {
		left[line]++
	}
	for _, line := range b {
		left[line]--
	}
	for _, n := range left {
		if n != 0 {
			return false
		}
	}
	return true
}

// TestCheckPrint shows that what is printed is a configuration, and the one that
// was asked about.
func TestCheckPrint(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"the defaults": {"check", "--print"},
		"a file":       {"check", "--print", file(t, "cache: {size: 128Mi}\nlog: {queries: sample=7}\n")},
	} {
		want := config.Default(config.Agent)
		if len(args) == 3 {
			want.Cache.Size = 128 << 20
			want.Log.Queries = config.QueryLog{Mode: config.QueriesSample, Sample: 7}
		}
		printed := command(args...)
		got, err := config.Parse([]byte(printed.Stdout), config.Agent)
		if printed.Code != exitOK || err != nil {
			t.Fatalf("%s: %+v: %v", name, printed, err)
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	if got := command("version"); got.Code != exitOK || !regexp.MustCompile(`^node-cache dev go1\.\d+\S* \w+/\w+\n$`).MatchString(got.Stdout) {
		t.Errorf("%+v", got)
	}
}

func TestQuery(t *testing.T) {
	t.Parallel()
	records := []string{"www.test. 300 IN A 192.0.2.1", "www.test. 300 IN A 192.0.2.2"}
	zone := upstreamtest.Zone(records...)
	server := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
		if q.Name == "broken.test." {
			return upstreamtest.Action{Rcode: 2}
		}
		a := zone(q)
		a.Truncate = q.Name == "www.test." && q.Network == "udp"
		return a
	})
	addr := server.Listen(t).String()
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string // a pattern of standard output
	}{
		{"records, over TCP after TC", []string{"www.test"}, exitOK, `^www\.test\.\s+300\s+IN\s+A\s+192\.0\.2\.1\n.*192\.0\.2\.2\n; NOERROR, 2 records, \S+ over tcp in \S+\n$`},
		{"over TCP", []string{"--tcp", "www.test", "a"}, exitOK, `over tcp`},
		{"no such type", []string{"www.test", "AAAA"}, exitNothing, `^; NOERROR, 0 records`},
		{"no such name", []string{"nowhere.test"}, exitNothing, `^; NXDOMAIN, 0 records`},
		{"a failure", []string{"broken.test"}, exitFailed, `^; SERVFAIL, 0 records`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := command(append([]string{"query", "--server", addr}, tt.args...)...)
			if got.Code != tt.code || got.Stderr != "" || !regexp.MustCompile(tt.want).MatchString(got.Stdout) {
				t.Errorf("got %+v, want code %d and %s", got, tt.code, tt.want)
			}
		})
	}
}

func TestQueryNoServer(t *testing.T) {
	t.Parallel()
	got := command("query", "--server", "127.0.0.1:1", "www.test")
	if got.Code != exitFailed || !regexp.MustCompile(`^node-cache: asking 127\.0\.0\.1:1 for www\.test\.: .*connection refused\nhint: nothing listens there;`).MatchString(got.Stderr) {
		t.Errorf("%+v", got)
	}
}

// TestAgentCannotStart holds the form of what a person sees.
func TestAgentCannotStart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, config, want string }{
		{"an address of no interface", "listen: {addresses: [192.0.2.77], port: 5355}\n", "^node-cache: listening on udp 192\\.0\\.2\\.77:5355: .*cannot assign requested address\nhint: no interface of this host has the address"},
		{"only itself as upstream", "listen: {port: 5356}\nforward: [{zone: \".\", to: [\"127.0.0.1:5356\"]}]\n", `^node-cache: forward\[0\]: zone "\." to \[127\.0\.0\.1:5356\]: no usable upstream\nhint: all upstreams of this zone are node-cache.s own addresses`},
		{"a resolv.conf that is not there", "forward: [{zone: \".\", to: [/none/resolv.conf]}]\n", `^node-cache: forward\[0\]: zone "\." to .*/none/resolv\.conf.*no such file or directory\nhint: set a resolv\.conf`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := command("agent", "--config", file(t, tt.config))
			lines := got.Stderr[max(0, strings.Index(got.Stderr, "node-cache: ")):]
			if got.Code != exitFailed || !regexp.MustCompile(tt.want).MatchString(lines) {
				t.Errorf("%+v, want %s", got, tt.want)
			}
		})
	}
}
