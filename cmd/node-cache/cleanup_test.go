// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRemoveFiles(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	ours := []string{".last-good-123", "handover.sock", "last-good.yaml", "node-cache.snapshot", "node-cache.snapshot.tmp-1"}
	for _, name := range append([]string{"last-good.yaml.bak", "other"}, ours...) {
		must(t, os.WriteFile(filepath.Join(folder, name), nil, 0o600))
	}
	must(t, os.Mkdir(filepath.Join(folder, "node-cache.snapshots"), 0o700))
	var want []string
	for _, name := range ours {
		want = append(want, "file "+filepath.Join(folder, name))
	}
	got, err := removeFiles([]string{filepath.Join(folder, "missing"), folder})
	must(t, err)
	same(t, "removed", want, got)
	left, err := os.ReadDir(folder)
	must(t, err)
	if len(left) != 3 || left[0].Name() != "last-good.yaml.bak" || left[1].Name() != "node-cache.snapshots" || left[2].Name() != "other" {
		t.Errorf("left: %v, want what is not an agent's: a person's copy, a folder and another file", left)
	}
	if _, err := removeFiles([]string{filepath.Join(folder, "other")}); err == nil {
		t.Error("a file in place of a folder: no error")
	}
}
