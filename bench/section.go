// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// clusterMark is where the section cluster begins: it has the rest of the page, and the section servers what is above.
const clusterMark = "<!-- begin cluster -->\n"

// readPage reads both parts of a page. There may be no such file yet.
func readPage(path string) (servers, cluster string, err error) {
	if path == "" {
		return "", "", nil
	}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", fmt.Errorf("reading the old report: %w", err)
	}
	servers, cluster, _ = strings.Cut(string(text), clusterMark)
	return servers, cluster, nil
}
