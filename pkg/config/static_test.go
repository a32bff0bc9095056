// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
)

func TestLoadHostsFiles(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "config.yaml")
	text := "hosts: {files: [hosts, /etc/hosts, " + filepath.Join(folder, "hosts") + "]}"
	assert.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	c, err := config.Load(file, config.Agent)
	assert.NoError(t, err)
	assert.Same(t, "files", []string{filepath.Join(folder, "hosts"), "/etc/hosts"}, c.Hosts.Files)
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
			assert.NoError(t, err)
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
			name: "deep", text: "cache: {prefetch: {hits: 3}, nxdomainCut: on}", notes: map[string]string{"cache.prefetch.hits": "three", "cache": "unused"},
			want: "cache:\n  prefetch:\n    # three\n    hits: 3\n  nxdomainCut: \"on\"\n",
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
			assert.NoError(t, err)
			got, err := config.MarshalChanges(c, tt.role, func(path string) string { return tt.notes[path] })
			assert.NoError(t, err)
			const head = "apiVersion: node-cache.io/v1alpha1\nkind: Config\n"
			assert.Same(t, "MarshalChanges", head+tt.want, string(got))
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
