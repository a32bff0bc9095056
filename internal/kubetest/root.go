// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// repositoryRoot finds the folder of the main module in the working directory or above it: a test runs in its
// package's folder, and the folders of the nested modules lie below the root as well.
func repositoryRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the repository: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(text, []byte("module github.com/nodecache/node-cache\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("finding the repository: no go.mod of node-cache in %s or above it", start)
		}
	}
}
