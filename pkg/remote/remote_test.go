// SPDX-License-Identifier: Apache-2.0

package remote_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/remote"
)

func TestText(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"short":              {"forbidden", "forbidden"},
		"as long as allowed": {strings.Repeat("x", 1024), strings.Repeat("x", 1024)},
		"one byte longer":    {strings.Repeat("x", 1025), strings.Repeat("x", 1003) + "… (cut, 1025 bytes)"},
		"cut within a character of two bytes": {
			strings.Repeat("ä", 600), strings.Repeat("ä", 501) + "… (cut, 1200 bytes)",
		},
		"cut within a character of four bytes": {
			strings.Repeat("😀", 300) + "xyz", strings.Repeat("😀", 250) + "… (cut, 1203 bytes)",
		},
		"no character begins": {strings.Repeat("\x80", 1025), strings.Repeat("\x80", 1003) + "… (cut, 1025 bytes)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, "text", c.want, remote.Text(c.text))
		})
	}
}

func TestError(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "no error", nil, remote.Error(nil))
	assert.Equal(t, "short error", io.EOF, remote.Error(io.EOF))
	long := fmt.Errorf("%s: %w", strings.Repeat("x", 14<<20), io.EOF)
	cut := remote.Error(long)
	assert.Equal(t, "text", remote.Text(long.Error()), cut.Error())
	assert.Equal(t, "is the error that it wraps", true, errors.Is(cut, io.EOF))
}

// FuzzText cuts any text: the result is short, begins as the text does, and no character of it is broken.
func FuzzText(f *testing.F) {
	f.Add("x", 2000)
	f.Add("ä", 1000)
	f.Add("\xf0\x9f\x98\x80\xff", 300)
	f.Fuzz(func(t *testing.T, unit string, n int) {
		text := strings.Repeat(unit, max(0, min(n, 2048)))
		got := remote.Text(text)
		if len(text) <= remote.MaxText {
			assert.Equal(t, "short text", text, got)
			return
		}
		kept := got[:max(0, strings.LastIndex(got, "… (cut, "))]
		if len(got) > remote.MaxText || len(got) < remote.MaxText-utf8.UTFMax || !strings.HasPrefix(text, kept) {
			t.Errorf("%d bytes of %q", len(got), text)
		}
		if utf8.ValidString(text) && !utf8.ValidString(got) {
			t.Errorf("%q is not valid", got)
		}
	})
}
