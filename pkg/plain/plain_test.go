// SPDX-License-Identifier: Apache-2.0

package plain_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/plain"
)

func TestPlain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, line, lines, err string }{
		{"nothing", "", "", "", ""},
		{"printable", "a ü 漢 😀", "a ü 漢 😀", "a ü 漢 😀", "a ü 漢 😀"},
		{"lines", "a\nb\n", "a?b?", "a\nb\n", "a; b; "},
		{"other ends of lines", "a\rb\vc\fd\u0085e\u2028f\u2029g", "a?b?c?d?e?f?g", "a?b?c?d?e?f?g", "a?b?c?d?e?f?g"},
		{"an escape sequence", "\x1b[2J\x1b]0;x\a", "?[2J?]0;x?", "?[2J?]0;x?", "?[2J?]0;x?"},
		{"C1, as UTF-8 and as a byte", "\u009b2J\x9b2J", "?2J?2J", "?2J?2J", "?2J?2J"},
		{"bidirectional", "\u202eab\u202c\u2066\u2069\u200f\u061c", "?ab?????", "?ab?????", "?ab?????"},
		{"invisible", "a\u200bb\u00adc\ufeffd\U000e0041\u00a0\x7f\x00\t", "a?b?c?d?????", "a?b?c?d?????", "a?b?c?d?????"},
	} {
		assert.Equal(t, tt.name+": Line", tt.line, plain.Line(tt.text))
		assert.Equal(t, tt.name+": Lines", tt.lines, plain.Lines(tt.text))
		assert.Equal(t, tt.name+": Error", tt.err, plain.Error(tt.text))
	}
}

// FuzzPlain has nothing but printable characters and its own line breaks in the output, and JSON with the same value.
func FuzzPlain(f *testing.F) {
	f.Add("a\n\x1b[2J\u009b\u202e\u2028\xff\U000e0041\x7f\t")
	f.Fuzz(func(t *testing.T, text string) {
		value, err := json.MarshalIndent(map[string]string{text: text}, "", "\t")
		assert.NoError(t, err)
		escaped := plain.JSON(value)
		for _, out := range []string{plain.Line(text), plain.Error(text), plain.Lines(text), string(escaped)} {
			for _, c := range out {
				if c != '\n' && !unicode.IsPrint(c) {
					t.Errorf("%q has %q", out, c)
				}
			}
		}
		if line := plain.Line(text) + plain.Error(text); strings.Contains(line, "\n") {
			t.Errorf("%q has more than one line", line)
		}
		assert.Equal(t, "line breaks", strings.Count(text, "\n"), strings.Count(plain.Lines(text), "\n"))
		assert.Equal(t, "characters", utf8.RuneCountInString(text), utf8.RuneCountInString(plain.Line(text)))
		var before, after map[string]string
		assert.NoError(t, json.Unmarshal(value, &before))
		assert.NoError(t, json.Unmarshal(escaped, &after))
		assert.Same(t, "value", before, after)
	})
}
