// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/pkg/cli"
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

// commandWith is command with a standard input.
func commandWith(stdin string, args ...string) result {
	var stdout, stderr bytes.Buffer
	root := rootCommand()
	root.SetIn(strings.NewReader(stdin))
	code := cli.Run(root, args, &stdout, &stderr, report)
	return result{code, stdout.String(), stderr.String()}
}

// file writes a configuration file and gives its path.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// TestUsage has command lines that are invalid: they send no request.
func TestUsage(t *testing.T) {
	t.Parallel()
	transparent := file(t, "listen: {addresses: [169.254.20.10], port: 53}\ninterface: {manage: true}\nintercept: {manage: true, mode: transparent, services: [10.96.0.10]}\n")
	for _, tt := range []struct {
		name string
		args []string
		want string // the first line of standard error
	}{
		{"unknown command", []string{"serve"}, `node-cache: unknown command "serve" for "node-cache"`},
		{"mistyped command", []string{"cahce", "top"}, `node-cache: unknown command "cahce" for "node-cache"; did you mean cache?`},
		{"mistyped subcommand", []string{"cache", "tpo"}, `node-cache: unknown command "tpo" for "node-cache cache"; did you mean top?`},
		{"query: another format", []string{"query", "-o", "xml", "a.b"}, `node-cache: --output "xml": not text or json`},
		{"check: another format", []string{"check", "-o", "xml", "a"}, `node-cache: --output "xml": not text or json`},
		{"unknown flag", []string{"agent", "--colour"}, "node-cache: unknown flag: --colour"},
		{"too many files", []string{"check", "a", "b"}, "node-cache: accepts at most 1 arg(s), received 2"},
		{"nothing to check", []string{"check"}, "node-cache: check: missing FILE; - is standard input, and --print alone shows the defaults"},
		{"no name", []string{"query"}, "node-cache: accepts between 1 and 2 arg(s), received 0"},
		{"a name that is none", []string{"query", "a..b"}, `node-cache: "a..b": not a domain name`},
		{"a type that is none", []string{"query", "a.b", "BOGUS"}, `node-cache: "BOGUS": not a record type`},
		{"a server that is none", []string{"query", "--server", "localhost", "a.b"}, `node-cache: --server "localhost": not an IP address with or without a port`},
		{"doctor: an output that is none", []string{"doctor", "--output", "xml"}, `node-cache: --output "xml": not text or json`},
		{"doctor: a file without its flag", []string{"doctor", "file.yaml"}, `node-cache: unknown command "file.yaml" for "node-cache doctor"`},
		{"doctor: no time", []string{"doctor", "--timeout", "0s"}, "node-cache: --timeout 0s: not more than 0"},
		{"doctor: a name that is none", []string{"doctor", "--name", "a..b"}, `node-cache: --name "a..b": not a domain name`},
		{"doctor: a Service that is none", []string{"doctor", "--config", transparent, "--service", "kube-dns"}, `node-cache: --service "kube-dns": not an IP address, or the mode is not transparent`},
		{"doctor: a Service for another mode", []string{"doctor", "--service", "10.96.0.10"}, `node-cache: --service "10.96.0.10": not an IP address, or the mode is not transparent`},
		{"cache: no command", []string{"cache"}, "node-cache: cache: missing subcommand: get, top, or flush"},
		{"cache: another command", []string{"cache", "empty"}, `node-cache: unknown command "empty" for "node-cache cache"`},
		{"cache: get nothing", []string{"cache", "get"}, "node-cache: accepts between 1 and 2 arg(s), received 0"},
		{"cache: get what is no name", []string{"cache", "get", "a..b"}, `node-cache: "a..b": not a domain name`},
		{"cache: get an empty name", []string{"cache", "get", ""}, `node-cache: "": not a domain name`},
		{"cache: get what is no type", []string{"cache", "get", "a", "BOGUS"}, `node-cache: "BOGUS": not a record type`},
		{"cache: get type 0", []string{"cache", "get", "a", "TYPE0"}, `node-cache: "TYPE0": not a record type`},
		{"cache: top of none", []string{"cache", "top", "-n", "0"}, "node-cache: -n 0: not from 1 to 1000"},
		{"cache: top of too many", []string{"cache", "top", "-n", "1001"}, "node-cache: -n 1001: not from 1 to 1000"},
		{"cache: top by age", []string{"cache", "top", "--by", "age"}, `node-cache: --by "age": not hits or size`},
		{"cache: flush nothing", []string{"cache", "flush"}, "node-cache: cache flush: give exactly one of NAME, --zone, and --all"},
		{"cache: flush a name and all", []string{"cache", "flush", "a", "--all"}, "node-cache: cache flush: give exactly one of NAME, --zone, and --all"},
		{"cache: flush a zone and all", []string{"cache", "flush", "--zone", "a", "--all"}, "node-cache: cache flush: give exactly one of NAME, --zone, and --all"},
		{"cache: flush an empty zone", []string{"cache", "flush", "--zone", ""}, `node-cache: "": not a domain name`},
		{"cache: flush what is no zone", []string{"cache", "flush", "--zone", ".a"}, `node-cache: ".a": not a domain name`},
		{"cache: another format", []string{"cache", "top", "--output", "yaml"}, `node-cache: --output "yaml": not text or json`},
		{"cache: an agent by name", []string{"cache", "top", "--admin", "localhost:9253"}, `node-cache: --admin "localhost:9253": neither IP:PORT nor unix:/path`},
		{"cache: an agent without a port", []string{"cache", "top", "--admin", "127.0.0.1"}, `node-cache: --admin "127.0.0.1": neither IP:PORT nor unix:/path`},
		{"cache: a socket beside", []string{"cache", "top", "--admin", "unix:run/x"}, `node-cache: --admin "unix:run/x": the path of the socket must start with /`},
		{"convert: nothing to convert", []string{"convert"}, "node-cache: convert: give either FILE, or --from-cluster, which --kubeconfig is for"},
		{"status: another format", []string{"status", "--output", "yaml"}, `node-cache: --output "yaml": not text or json`},
		{"ready: an agent by name", []string{"ready", "--admin", "localhost"}, `node-cache: --admin "localhost": neither IP:PORT nor unix:/path`},
		{"doctor: standard input twice", []string{"doctor", "--config", "-", "--corefile", "-"}, "node-cache: --config and --corefile: only one can be standard input"},
		{"cleanup: no folder", []string{"cleanup", "--folder", ""}, "node-cache: --folder names no folder"},
	} {
		hint := "hint: `node-cache " + tt.args[0] + " --help` shows its arguments and flags\n"
		if strings.Contains(tt.want, `for "node-cache"`) {
			hint = "hint: `node-cache --help` shows its arguments and flags\n"
		} else if tt.args[0] == "cache" && len(tt.args) > 1 && !strings.Contains(tt.want, "unknown command") {
			hint = strings.Replace(hint, "cache --", "cache "+tt.args[1]+" --", 1)
		}
		same(t, tt.name, result{cli.ExitUsage, "", tt.want + "\n" + hint}, command(tt.args...))
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	good := file(t, "cache: {size: 128Mi}\n")
	same(t, "a good file", result{cli.ExitOK, good + ": ok\n", ""}, command("check", good))
	password := file(t, "secret")
	for endpoints, warned := range map[string]string{
		"http://127.0.0.1:2379, 'http://[::1]:2379'": "", "https://etcd.example:2379": "",
		"http://127.0.0.1:2379, http://etcd.example:2379": "http://etcd.example:2379",
	} {
		plain := file(t, "etcd: {zones: [a.example], user: u, passwordFile: "+password+", endpoints: ["+endpoints+"]}\n")
		want := result{cli.ExitOK, plain + ": ok\n", ""}
		if warned != "" {
			want.Stderr = "node-cache: " + plain + ":1:51: warning: etcd.passwordFile: the network carries the password in plain text to " + warned + "\nhint: write https:// endpoints\n"
		}
		same(t, endpoints, want, command("check", plain))
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
	slices.Sort(lines)
	if diff := cmp.Diff(strings.Split(want, "\n"), lines); got.Code != cli.ExitFailed || got.Stdout != "" || diff != "" {
		t.Errorf("five mistakes: code %d (-want +got):\n%s", got.Code, diff)
	}
	for name, want := range map[string]string{
		"cluster.local:53 {\n  errors\n  kubernetes cluster.local {\n  }\n}\n": "FILE:1:1: a Corefile\nhint: `node-cache convert` makes",
		"kind: ConfigMap\n":          "FILE:1:7: kind: \"ConfigMap\": not Config\nhint: check the text of its key node-cache.yaml;",
		"cache: {serveStale: off}\n": "FILE:1:21: cache.serveStale: off: not a mapping\nhint: write {for: 0s}\n",
		"cache: {prefetch: no}\n":    "FILE:1:19: cache.prefetch: no: not a mapping\nhint: write {hits: 0}\n",
		"cache: {prefetch: yes}\n":   "FILE:1:19: cache.prefetch: yes: not a mapping\nhint: on is the default",
	} {
		bad := file(t, name)
		if got := command("check", bad); !strings.HasPrefix(strings.ReplaceAll(got.Stderr, bad, "FILE"), "node-cache: "+want) {
			t.Errorf("%s: got %q, want %q", name, got.Stderr, want)
		}
	}
	own := "forward:\n- {zone: ., to: [192.0.2.1, '127.0.0.1:1053']}\n"
	const warning = "standard input:2:29: warning: forward[0].to[1]: \"127.0.0.1:1053\": never asked: node-cache itself listens there"
	same(t, "a warning", result{cli.ExitOK, "standard input: ok\n", "node-cache: " + warning + "\nhint: leave it out\n"}, commandWith(own, "check", "-"))
	same(t, "no text", result{
		cli.ExitFailed, "", "node-cache: standard input is empty\nhint: the command before the pipe may have failed; `kind: Config` stands for the built-in defaults\n",
	}, commandWith("", "check", "-"))
	missing := "forward: [{zone: ., to: [/none/resolv.conf]}]\n"
	same(t, "a missing file", result{
		cli.ExitFailed, "", "node-cache: standard input:1:26: forward[0].to[0]: \"/none/resolv.conf\": no such file or directory\n" +
			"hint: name a file that this user can read, or give --no-files if this machine is not the node\n",
	}, commandWith(missing, "check", "-"))
	same(t, "a missing file that is not read", result{cli.ExitOK, "standard input: ok\n", ""}, commandWith(missing, "check", "--no-files", "-"))
	var warned struct{ Problems, Warnings []config.Problem }
	must(t, json.Unmarshal([]byte(commandWith(own, "check", "-o", "json", "-").Stdout), &warned))
	if len(warned.Problems) != 0 || len(warned.Warnings) != 1 || warned.Warnings[0].Line != 2 {
		t.Errorf("as JSON: %+v, want one warning", warned)
	}
	if got := commandWith("cache: {sise: 1}", "doctor", "--config", "-"); got.Code != cli.ExitFailed || !strings.HasPrefix(got.Stderr, "node-cache: standard input:1:9: cache.sise: unknown key\n") {
		t.Errorf("doctor: %+v", got)
	}
	asJSON := command("check", "-o", "json", bad)
	var report struct{ Problems []config.Problem }
	if err := json.Unmarshal([]byte(asJSON.Stdout), &report); err != nil || asJSON.Code != cli.ExitFailed || asJSON.Stderr != "" || len(report.Problems) != 5 || report.Problems[0].Line != 1 {
		t.Errorf("as JSON: %+v, %v", asJSON, err)
	}
	absent := command("check", filepath.Join(t.TempDir(), "none.yaml"))
	if absent.Code != cli.ExitFailed || !strings.Contains(absent.Stderr, "no such file or directory\nhint: give the path of an existing file;") {
		t.Errorf("no configuration file: %+v", absent)
	}
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
		if printed.Code != cli.ExitOK || err != nil {
			t.Fatalf("%s: %+v: %v", name, printed, err)
		}
		same(t, name, want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}))
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	same(t, "--version", command("version"), command("--version"))
	if got := command("version"); got.Code != cli.ExitOK || !regexp.MustCompile(`^node-cache dev go1\.\d+\S* \w+/\w+\n$`).MatchString(got.Stdout) {
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
		{"records, over TCP after TC", []string{"www.test"}, cli.ExitOK, `^www\.test\.\s+300\s+IN\s+A\s+192\.0\.2\.1\n.*192\.0\.2\.2\n; NOERROR, 2 records, \S+ over tcp in \S+\n$`},
		{"over TCP", []string{"--tcp", "www.test", "a"}, cli.ExitOK, `over tcp`},
		{"no such type", []string{"www.test", "AAAA"}, exitNothing, `^; NOERROR, 0 records`},
		{"no such name", []string{"nowhere.test"}, exitNothing, `^; NXDOMAIN, 0 records`},
		{"a failure", []string{"broken.test"}, cli.ExitFailed, `^; SERVFAIL, 0 records`},
		{"as JSON", []string{"-o", "json", "nowhere.test"}, exitNothing, `(?s)^{\n  "rcode": "NXDOMAIN",\n  "records": \[\],.*"latencySeconds": 0\.\d+\n}\n$`},
	} {
		got := command(append([]string{"query", "--server", addr}, tt.args...)...)
		if got.Code != tt.code || got.Stderr != "" || !regexp.MustCompile(tt.want).MatchString(got.Stdout) {
			t.Errorf("%s: got %+v, want code %d and %s", tt.name, got, tt.code, tt.want)
		}
	}
}

func TestQueryNoServer(t *testing.T) {
	t.Parallel()
	got := command("query", "--server", "127.0.0.1:1", "www.test")
	if got.Code != cli.ExitFailed || !regexp.MustCompile(`^node-cache: asking 127\.0\.0\.1:1 for www\.test\.: .*connection refused\nhint: nothing listens there;`).MatchString(got.Stderr) {
		t.Errorf("%+v", got)
	}
}

// TestAgentCannotStart holds the form of what a person sees.
func TestAgentCannotStart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, config, want string }{
		{"an address of no interface", "listen: {addresses: [192.0.2.77], port: 5355}\n", "^node-cache: listening on udp 192\\.0\\.2\\.77:5355: .*cannot assign requested address\nhint: no interface of this host has the address"},
		{"only itself as upstream", "listen: {port: 5356}\nforward: [{zone: \".\", to: [\"127.0.0.1:5356\"]}]\n", `^node-cache: .*config\.yaml:2:27: forward\[0\]\.to: "127\.0\.0\.1:5356": no usable upstream: node-cache itself listens there, and the list has no other server\nhint: name another server for "\."`},
		{"a resolv.conf that is not there", "forward: [{zone: \".\", to: [/none/resolv.conf]}]\n", `^node-cache: forward\[0\]: zone "\." to .*/none/resolv\.conf.*no such file or directory\nhint: set a resolv\.conf`},
	} {
		got := command("agent", "--config", file(t, tt.config))
		lines := got.Stderr[max(0, strings.Index(got.Stderr, "node-cache: ")):]
		if got.Code != cli.ExitFailed || !regexp.MustCompile(tt.want).MatchString(lines) {
			t.Errorf("%s: %+v, want %s", tt.name, got, tt.want)
		}
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
