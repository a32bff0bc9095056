// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
)

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

// TestParse reads each text of testdata/parse.txtar, and compares what is written of it.
func TestParse(t *testing.T) {
	t.Parallel()
	assert.GoldenPairs(t, "testdata/parse.txtar", func(t *testing.T, name, text string) string {
		t.Helper()
		role := config.Agent
		if strings.HasPrefix(name, "resolver") {
			role = config.Resolver
		}
		c, err := config.Parse([]byte(text), role)
		assert.NoError(t, err)
		got, err := config.MarshalChanges(c, role, nil)
		assert.NoError(t, err)
		roundTrip(t, c, role)
		return strings.TrimPrefix(string(got), "apiVersion: node-cache.io/v1alpha1\nkind: Config\n")
	})
}

func TestParseBytes(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"byte order mark": "\ufefflisten: {port: 53}\n", "line ends of Windows": "listen:\r\n  port: 53\r\n", "no line end": "listen: {port: 53}",
	} {
		got, err := config.Parse([]byte(text), config.Agent)
		assert.NoError(t, err)
		assert.Same(t, name, with(func(c *config.Config) { c.Listen.Port = 53 }), got, plain())
	}
}

// roundTrip fails unless a plan survives Marshal and Parse.
func roundTrip(t *testing.T, c config.Config, role config.Role) {
	t.Helper()
	text, err := config.Marshal(c)
	assert.NoError(t, err)
	again, err := config.Parse(text, role)
	if err != nil {
		t.Fatalf("Parse of\n%s: %v", text, err)
	}
	assert.Same(t, "after Marshal", c, again, plain())
	if _, err := config.MarshalChanges(c, role, nil); err != nil { // which reads it again itself
		t.Errorf("MarshalChanges: %v", err)
	}
}

func TestParseBad(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/bad-*.yaml")
	assert.NoError(t, err)
	if len(files) < 25 {
		t.Fatalf("found %d bad files, want at least 25", len(files))
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			assert.NoError(t, err)
			role := config.Agent
			if strings.HasPrefix(filepath.Base(file), "bad-resolver-") {
				role = config.Resolver
			}
			c, err := config.Parse(data, role)
			if _, ok := errors.AsType[*config.Error](err); !ok {
				t.Fatalf("Parse: error %v, want a *config.Error", err)
			}
			assert.Same(t, "plan beside an error", config.Config{}, c, plain())
			assert.Golden(t, strings.TrimSuffix(file, ".yaml")+".txt", err.Error()+"\n")
		})
	}
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
			want: "line 1:1: YAML: exceeded max depth of 10000\n  hint: check the indentation and the brackets, here and above, and quote an IPv6 address",
		},
		{name: "separator of YAML 1.1", text: "a: 1\u2028---\u2028b: 1\n", want: "line 3:1: a second document\n  hint: one file holds one configuration"},
		{name: "second document after an end", text: "kind: Config\n...\nb: 1\n", want: "line 3:1: YAML: did not find expected <document start>\n  hint: one file holds one configuration"},
		{name: "second document on its marker", text: "--- {}\n--- {}\n", want: "line 2:5: a second document\n  hint: one file holds one configuration"},
		{name: "a mistake in the first line", text: "listen: }", want: "line 1:1: YAML: did not find expected node content\n  hint: check the indentation and the brackets, here and above, and quote an IPv6 address"},
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
			assert.Same(t, "error", tt.want, err.Error())
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
	text := "listen: &a [" + strings.Repeat("x, ", 2000) + "]\nforward: [" + strings.Repeat("*a, ", 2000) + "]"
	_, err := config.Parse([]byte(text), config.Agent)
	problems, ok := errors.AsType[*config.Error](err)
	if !ok || !slices.ContainsFunc(problems.Problems, func(p config.Problem) bool { return p.What == "too many aliases" }) {
		t.Errorf("error %.200v, want one about aliases", err)
	}
}

// TestParseLines has syntax errors in a text of many lines. Those for which the library names a line far above get the line where
// it stopped.
func TestParseLines(t *testing.T) {
	t.Parallel()
	const hint = "\n  hint: check the indentation and the brackets, here and above, and quote an IPv6 address"
	for text, want := range map[string]string{
		"listen: }":         "did not find expected node content" + hint,
		" listen: {}":       "did not find expected key" + hint,
		"listen: {a: b, c]": "did not find expected ',' or '}'" + hint,
		"listen: *a":        "unknown anchor 'a' referenced" + hint,
		"listen: 'a":        "found unexpected end of stream\n  hint: close the quotes",
		"listen: @a":        "found character that cannot start any token\n  hint: indent with spaces, not with tabs, and quote a value that begins with @ or `",
		"listen: a: b":      "mapping values are not allowed in this context\n  hint: quote a value that holds a colon and a space, and check the indentation",
	} {
		text = "hosts:\n" + strings.Repeat("- {name: a.example}\n", 100) + text
		_, err := config.Parse([]byte(text), config.Agent)
		if want = "line 102:1: YAML: " + want; err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// TestParseMerges refuses merge keys, which YAML 1.2 does not have. Aliases of whole values are taken.
func TestParseMerges(t *testing.T) {
	t.Parallel()
	_, err := config.Parse([]byte("forward:\n- &a {zone: ., to: &to [192.0.2.1]}\n- {<<: *a, zone: b, to: *to}\n"), config.Agent)
	const want = "line 3:4: forward[1][\"<<\"]: unknown key\n  hint: YAML 1.2 has no merge keys: write the keys themselves, or take the whole mapping with *"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	got, err := config.Parse([]byte("forward:\n- {zone: ., to: &to [192.0.2.1]}\n- {zone: b, to: *to}\n"), config.Agent)
	assert.NoError(t, err)
	assert.Same(t, "targets", fmt.Sprint(got.Forward[0].To), fmt.Sprint(got.Forward[1].To))
}

func TestLoad(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	assert.NoError(t, os.WriteFile(file, []byte("listen: {port: 53}"), 0o600))
	got, err := config.Load(file, config.Agent)
	assert.NoError(t, err)
	assert.Same(t, "Load", with(func(c *config.Config) { c.Listen.Port = 53 }), got, plain())
}

func TestLoadNamesTheFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	assert.NoError(t, os.WriteFile(file, []byte("listen: {port: 0}\ncach: {}"), 0o600))
	_, err := config.Load(file, config.Agent)
	want := &config.Error{Path: file, Problems: []config.Problem{
		{Line: 1, Column: 16, Path: "listen.port", What: "0: not between 1 and 65535", Hint: "the default is 1053"},
		{Line: 2, Column: 1, Path: "cach", What: "unknown key", Hint: `did you mean "cache"?`},
	}}
	got, ok := errors.AsType[*config.Error](err)
	if !ok {
		t.Fatalf("Load: error %v, want a *config.Error", err)
	}
	assert.Same(t, "Load", want, got)
	text := file + ":1:16: listen.port: 0: not between 1 and 65535\n  hint: the default is 1053\n" + file + ":2:1: cach: unknown key\n  hint: did you mean \"cache\"?"
	assert.Same(t, "message", text, err.Error())
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
