// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/pkg/convert"
)

// TestCorpus converts the directives of 113 public Corefiles, which have other names and addresses here. The test of the same name in
// test/cluster asks where the queries go.
func TestCorpus(t *testing.T) {
	t.Parallel()
	lossy := 0
	files := strings.Split(string(read(t, filepath.Join("testdata", "corpus.txt")))[3:], "\n== ")
	for _, file := range files {
		_, text, _ := strings.Cut(file, "\n")
		r, err := convert.Files([]convert.Input{{Name: "Corefile", Text: []byte(text)}}, convert.Options{})
		must(t, err)
		if r.Lost() {
			lossy++
		}
	}
	same(t, "files, and those with a loss", [2]int{113, 57}, [2]int{len(files), lossy})
}
