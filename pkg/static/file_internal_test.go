// SPDX-License-Identifier: Apache-2.0

package static

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLookAtWriting looks at a file between the steps of one who writes it in place: it is read when it rests, or does
// not for all the time it is given.
func TestLookAtWriting(t *testing.T) {
	t.Parallel()
	f := &file{path: filepath.Join(t.TempDir(), "hosts")}
	look := func(step, text string, changed, stirs bool) {
		t.Helper()
		if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := f.look(true); got != changed || f.stirs != stirs || f.err != nil {
			t.Errorf("%s: changed %t, stirs %t, %v; want %t, %t", step, got, f.stirs, f.err, changed, stirs)
		}
	}
	at := func(size int) string { return strings.Repeat("#", size) }
	rests := func(step string, changed bool) {
		t.Helper()
		if got := f.look(true); got != changed || f.stirs {
			t.Errorf("%s: changed %t, stirs %t", step, got, f.stirs)
		}
	}
	look("the first", at(100), true, false)
	rests("as it was", false)
	look("emptied", "", false, true)
	look("a part", at(10), false, true)
	look("more", at(20), false, true)
	if len(f.text) != 100 {
		t.Errorf("%d octets in use while it is written, want 100", len(f.text))
	}
	rests("at rest", true)
	if len(f.text) != 20 {
		t.Errorf("%d octets in use at rest, want 20", len(f.text))
	}
	for i := range maxMoves {
		look("without rest", at(30+i), false, true)
	}
	look("long enough", at(29), true, false)
	look("again", at(28), false, true)
}
