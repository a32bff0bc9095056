// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

func addrs(texts ...string) []netip.Addr {
	list := make([]netip.Addr, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParseAddr(text)
	}
	return list
}

func TestParseStatic(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		want       func(*config.Config)
	}{
		{
			name: "hosts, every key", text: "hosts: {files: [/etc/hosts, extra/../more], ttl: 0s, reverse: off, names: {B.example.: [0.0.0.0, '::'], " +
				"_a.example: ['2001:db8::1', 192.0.2.1, 224.0.0.251], x: ['::1']}}",
			want: func(c *config.Config) {
				c.Hosts = config.Hosts{
					Files: []string{"/etc/hosts", "more"}, NoReverse: true,
					Names: map[string][]netip.Addr{
						"_a.example.": addrs("2001:db8::1", "192.0.2.1", "224.0.0.251"),
						"b.example.":  addrs("0.0.0.0", "::"),
						"x.":          addrs("::1"),
					},
				}
			},
		},
		{name: "hosts, the longest TTL", text: "hosts: {ttl: 1h, reverse: on}", want: func(c *config.Config) { c.Hosts.TTL = time.Hour }},
		{name: "nothing of all", text: "hosts: {files: [], names: {}}\nrewrite: []\ntemplates: []\nprobes: []\ndns64: {}\nhandover:\n", want: func(*config.Config) {}},
		{
			name: "rewrite, in order", text: "rewrite: [{exact: A.example., to: b.Example}, {prefix: P-, to: ''}, {prefix: p., to: q.}, " +
				"{suffix: .Old.example., to: .new.example.}, {suffix: -x, to: ''}, {suffix: old.example, to: new.example}, {prefix: p, to: q-}]",
			want: func(c *config.Config) {
				c.Rewrite = []config.Rewrite{
					{Exact: "a.example", To: "b.example"},
					{Prefix: "p-", To: ""},
					{Prefix: "p.", To: "q."},
					{Suffix: ".old.example", To: ".new.example"},
					{Suffix: "-x", To: ""},
					{Suffix: "old.example", To: "new.example"},
					{Prefix: "p", To: "q-"},
				}
			},
		},
		{
			name: "templates, every key",
			text: `templates:
- {zone: Example, types: [a, AAAA, TYPE65, TYPE64000], match: ['(^|[.])ip-10-(?P<b>[0-9]*)-(?P<c>[0-9]*)-(?P<d>[0-9]*)[.]example[.]$', 'x'], rcode: NXDOMAIN, authority: ['example 60 IN SOA ns.example hm.example 1 2 3 4 5']}
- {zone: ., types: [A], match: ['^ip-(?P<b>[0-9a-f]+)[.]'], answer: ['{{ .Name }} 60 IN A 10.0.0.{{ parseInt .Group.b 16 8 }}'], additional: ['{{ if eq .Type "MX" }}{{ .Zone }} A 192.0.2.1{{ end }}']}
- {zone: b.example, rcode: REFUSED, answer: ["{{ .Name }} 60 IN CNAME {{ index .Match 0 }}", "{{ .Name }} 60 IN CNAME {{ index .Group \"0\" }}"]}
`,
			want: func(c *config.Config) {
				c.Templates = []config.Template{
					{
						Zone: "example.", Types: []uint16{1, 28, 65, 64000}, Rcode: 3,
						Match:     []string{`(^|[.])ip-10-(?P<b>[0-9]*)-(?P<c>[0-9]*)-(?P<d>[0-9]*)[.]example[.]$`, "x"},
						Authority: []string{"example 60 IN SOA ns.example hm.example 1 2 3 4 5"},
					},
					{
						Zone: ".", Types: []uint16{1}, Match: []string{"^ip-(?P<b>[0-9a-f]+)[.]"},
						Answer:     []string{"{{ .Name }} 60 IN A 10.0.0.{{ parseInt .Group.b 16 8 }}"},
						Additional: []string{`{{ if eq .Type "MX" }}{{ .Zone }} A 192.0.2.1{{ end }}`},
					},
					{
						Zone: "b.example.", Rcode: 5,
						Answer: []string{"{{ .Name }} 60 IN CNAME {{ index .Match 0 }}", "{{ .Name }} 60 IN CNAME {{ index .Group \"0\" }}"},
					},
				}
			},
		},
		{
			name: "dns64", text: "dns64: {prefix: '64:ff9b::/96', translateAll: true, clients: all}",
			want: func(c *config.Config) {
				c.DNS64 = config.DNS64{Prefix: netip.MustParsePrefix("64:ff9b::/96"), TranslateAll: true, Clients: config.DNS64All}
			},
		},
		{
			name: "dns64, the shortest prefix", text: "dns64: {prefix: '2001:db8::/32'}",
			want: func(c *config.Config) { c.DNS64.Prefix = netip.MustParsePrefix("2001:db8::/32") },
		},
		{
			name: "probes", text: "probes: [{label: a, name: A.example}, {label: 0-z, name: ., type: ns, server: 192.0.2.1, interval: 1h, timeout: 1m}, " +
				"{label: tcp, name: a, server: 'tcp://[2001:db8::1]', interval: 1s}, {label: udp, name: a, server: 'udp://192.0.2.1:54', timeout: 10ms}]\n",
			want: func(c *config.Config) {
				c.Probes = []config.Probe{
					config.DefaultProbe("a", "a.example."),
					{Label: "0-z", Server: "192.0.2.1:53", Name: ".", Type: 2, Interval: time.Hour, Timeout: time.Minute},
					{Label: "tcp", Server: "tcp://[2001:db8::1]:53", Name: "a.", Type: 1, Interval: time.Second, Timeout: time.Second},
					{Label: "udp", Server: "192.0.2.1:54", Name: "a.", Type: 1, Interval: 5 * time.Second, Timeout: 10 * time.Millisecond},
				}
			},
		},
		{
			name: "handover", text: "handover: {socket: /run//node-cache/handover.sock}",
			want: func(c *config.Config) { c.Handover.Socket = "/run/node-cache/handover.sock" },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := config.Parse([]byte(tt.text), config.Agent)
			must(t, err)
			same(t, "Parse", with(tt.want), got, plain())
			roundTrip(t, got, config.Agent)
		})
	}
}

func TestLoadHostsFiles(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "config.yaml")
	text := "hosts: {files: [hosts, /etc/hosts, " + filepath.Join(folder, "hosts") + "]}"
	must(t, os.WriteFile(file, []byte(text), 0o600))
	c, err := config.Load(file, config.Agent)
	must(t, err)
	same(t, "files", []string{filepath.Join(folder, "hosts"), "/etc/hosts"}, c.Hosts.Files)
}

// TestParseRecordIsBounded refuses actions of a record that would run for long.
func TestParseRecordIsBounded(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{{ range 1000000000 }}x{{ end }}`, `{{ if .Name }}{{ range .Match }}x{{ end }}{{ end }}`, `{{ with .Name }}{{ else }}{{ template "record" }}{{ end }}`,
		`{{ template "record" }}`, `{{ define "x" }}{{ template "x" }}{{ end }}`, `{{ block "x" . }}{{ end }}`, `{{ with .Name }}{{ range 9 }}{{ end }}{{ end }}`,
		`{{ if .Name }}{{ else if .Zone }}{{ range 9 }}{{ end }}{{ end }}`,
	} {
		if _, err := config.ParseRecord(text); err == nil {
			t.Errorf("ParseRecord(%q): no error", text)
		}
	}
}

// TestRecordTextIsBounded has the actions of a record make longer and longer texts.
func TestRecordTextIsBounded(t *testing.T) {
	t.Parallel()
	const long = `{{ $a := printf "%999s" "x" }}{{ $a = print $a $a $a $a $a $a $a $a }}`
	for _, tt := range []struct{ name, text, want string }{
		{name: "printf", text: long + `{{ $a = printf "%s%s" $a $a }}`, want: "longer than 8 KiB"},
		{name: "the same argument again", text: long + `{{ $a = printf "%[1]s%[1]s" $a }}`, want: "longer than 8 KiB"},
		{name: "print", text: long + `{{ $a = print $a $a }}`, want: "longer than 8 KiB"},
		{name: "println", text: long + `{{ $a = println $a $a }}`, want: "longer than 8 KiB"},
		{name: "html", text: `{{ $a := printf "%999s" "" | printf "<%[1]s%[1]s" }}{{ html (js $a $a "<<<") $a $a (js $a) }}`, want: "longer than 8 KiB"},
		{name: "escapes", text: `{{ urlquery "` + strings.Repeat("<", 3000) + `" }}`, want: "longer than 8 KiB"},
		{name: "a width", text: `{{ printf "%1000s" "x" }}`, want: "3 digits"},
		{name: "a precision", text: `{{ printf "%-.1000f" 1.0 }}`, want: "3 digits"},
		{name: "a width of an argument", text: `{{ printf "%*s" 999999 "x" }}`, want: "3 digits"},
		{name: "a width behind percent", text: `{{ printf "%%%[1]1000s" "x" }}`, want: "3 digits"},
		{name: "what is usual", text: `{{ .Name }} 60 IN TXT "{{ printf "%s-%03d-%.2f-%[1]q %% 1000000" .Zone 7 1.5 }}{{ print 1 .Type }}{{ html .Match }}"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			record, err := config.ParseRecord(tt.text)
			must(t, err)
			rr, err := record(&config.TemplateData{Name: "a.example.", Zone: "example.", Type: "TXT", Match: []string{"a"}})
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%v, error %v, want one with %q", rr, err, tt.want)
			}
		})
	}
	if _, err := config.ParseRecord(strings.Repeat("{{ .Name }}", 257)); err == nil {
		t.Error("257 actions: no error")
	}
}

func TestMarshalChanges(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text, want string
		role             config.Role
		notes            map[string]string
	}{
		{name: "nothing", want: ""},
		{name: "nothing of a resolver", role: config.Resolver, text: "limits: {inflight: 100}", want: "limits:\n  inflight: 100\n"},
		{
			name: "deep", text: "cache: {prefetch: {hits: 3}, nxdomainCut: off}", notes: map[string]string{"cache.prefetch.hits": "three", "cache": "unused"},
			want: "cache:\n  prefetch:\n    # three\n    hits: 3\n  nxdomainCut: \"off\"\n",
		},
		{
			name: "bounds that routes inherit", text: "cache: {maxTTL: 2h}", want: "cache:\n  maxTTL: 2h\n",
		},
		{
			name:  "lists",
			text:  "forward: [{zone: a.example, to: [192.0.2.1], maxTTL: 1m}, {zone: ., to: [/etc/resolv.conf], tls: {}}]\nhosts: {names: {a.b: ['::1']}}\nrewrite: [{prefix: a, to: ''}]\ntemplates: [{zone: x}]\nprobes: [{label: a, name: b, type: SRV}]",
			notes: map[string]string{"forward[1]": "the second", "forward[1].to": "whom", "rewrite[0]": "rule", "hosts.names": "never"},
			want: "forward:\n- zone: \"a.example.\"\n  to: [\"192.0.2.1\"]\n  maxTTL: 1m\n# the second\n- zone: \".\"\n  # whom\n  to: [\"/etc/resolv.conf\"]\n" +
				"hosts:\n  names:\n    \"a.b.\": [\"::1\"]\nrewrite:\n# rule\n- prefix: \"a\"\n  to: \"\"\ntemplates:\n- zone: \"x.\"\nprobes:\n- label: \"a\"\n  name: \"b.\"\n  type: \"SRV\"\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, err := config.Parse([]byte(tt.text), tt.role)
			must(t, err)
			got, err := config.MarshalChanges(c, tt.role, func(path string) string { return tt.notes[path] })
			must(t, err)
			const head = "apiVersion: node-cache.io/v1alpha1\nkind: Config\n"
			same(t, "MarshalChanges", head+tt.want, string(got))
		})
	}
}

func TestMarshalChangesRefusesWhatParseCannotReturn(t *testing.T) {
	t.Parallel()
	c := with(func(c *config.Config) { c.Rewrite = []config.Rewrite{{Exact: "A.example", To: "b.example"}} })
	if text, err := config.MarshalChanges(c, config.Agent, nil); err == nil {
		t.Errorf("MarshalChanges: no error, and\n%s", text)
	}
}

func TestParseTarget(t *testing.T) {
	t.Parallel()
	got, err := config.ParseTarget("tls://192.0.2.1#DNS.example")
	if err != nil || got.String() != "tls://192.0.2.1#dns.example" {
		t.Errorf("ParseTarget: %v, %v", got, err)
	}
	const want = "\"ns.example\": not an IP address, a URL or a path\n  hint: a host name would have to be resolved first: write its address"
	if _, err := config.ParseTarget("ns.example"); err == nil || err.Error() != want {
		t.Errorf("ParseTarget of a name: error %v, want %s", err, want)
	}
	if zone, err := config.ParseZone("A.example"); err != nil || zone != "a.example." {
		t.Errorf("ParseZone: %q, %v", zone, err)
	}
	for text, want := range map[string]string{
		"a..b": "an empty label\n  hint: write one dot between labels", "..": `write "." for the root`, "*.": `write "." for the root`,
		"a b": "hint: letters, digits",
	} {
		if _, err := config.ParseZone(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseZone of %q: error %v, want %q in it", text, err, want)
		}
	}
}
