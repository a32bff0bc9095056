// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/pkg/convert"
)

// TestCorpus converts the directives of 113 public Corefiles, which have other names and addresses here. The test of the same name in
// test/cluster asks where the queries go.
func TestCorpus(t *testing.T) {
	t.Parallel()
	var unchanged, lossy, replaced int
	files := strings.Split(string(read(t, filepath.Join("testdata", "corpus.txt")))[3:], "\n== ")
	for _, file := range files {
		_, text, _ := strings.Cut(file, "\n")
		files := func(o convert.Options) *convert.Result {
			r, err := convert.Files([]convert.Input{{Name: "Corefile", Text: []byte(text)}}, o)
			must(t, err)
			return r
		}
		beside, alone := files(convert.Options{OldServer: netip.MustParseAddrPort("192.0.2.99:53")}), files(convert.Options{Replace: true})
		isLeft := slices.ContainsFunc(beside.Notes, func(n convert.Note) bool { return n.Left })
		switch {
		case beside.Lost():
			lossy++
		case !isLeft:
			unchanged++
		}
		if alone.Lost() {
			replaced++
		}
	}
	same(t, "files, those that are converted whole, those with a loss beside the old server, and in its place", [4]int{113, 41, 21, 71}, [4]int{len(files), unchanged, lossy, replaced})
}
