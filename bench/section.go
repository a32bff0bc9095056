// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// A page has the parts of the sections servers, cluster, kernel, rest and fleet. The others begin with a mark.
type page map[string]string

func mark(section string) string { return "<!-- begin " + section + " -->\n" }

// readPage reads all parts of a page. There may be no such file yet.
func readPage(path string) (page, error) {
	if path == "" {
		return page{}, nil
	}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the old report: %w", err)
	}
	before, fleet, _ := strings.Cut(string(text), mark(fleetSection))
	before, rest, _ := strings.Cut(before, mark(restSection))
	before, kernel, _ := strings.Cut(before, mark(kernelSection))
	servers, cluster, _ := strings.Cut(before, mark(clusterSection))
	return page{serversSection: servers, clusterSection: cluster, kernelSection: kernel, restSection: rest, fleetSection: fleet}, nil
}

// text is the page again. Parts end with an empty line, but for the last.
func (p page) text() string {
	end := func(part string) string { return strings.TrimRight(part, "\n") + "\n\n" }
	return end(p[serversSection]) + mark(clusterSection) + end(p[clusterSection]) + mark(kernelSection) + end(p[kernelSection]) +
		mark(restSection) + end(p[restSection]) + mark(fleetSection) + strings.TrimRight(p[fleetSection], "\n") + "\n"
}
