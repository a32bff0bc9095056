// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/google/licensecheck"
)

// licence is what a module, the Go library or this project is given under.
type licence struct {
	ids   []string // SPDX identifiers, all of which apply; empty if no text is known
	texts []text
}

// text is one file that has to go with the binary.
type text struct {
	name string // the file's own name
	data []byte
}

// known is the part of a text that must be words of known licences before it is named after them, in percent.
const known = 75

// readLicence reads the licence texts and notices at the top of a module.
func readLicence(folder string) (licence, error) {
	var l licence
	entries, err := os.ReadDir(folder)
	if err != nil {
		return l, fmt.Errorf("looking for licences: %w", err)
	}
	// Notices and grants of patents go with the binary too, but are no licences with an SPDX identifier.
	notice := regexp.MustCompile(`(?i)^(notice|patents)`)
	wanted := regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)`)
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !wanted.MatchString(entry.Name()) || filepath.Ext(entry.Name()) == ".go" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return l, fmt.Errorf("reading a licence: %w", err)
		}
		l.texts = append(l.texts, text{name: entry.Name(), data: data})
		if !notice.MatchString(entry.Name()) {
			l.ids = append(l.ids, identify(data)...)
		}
	}
	slices.Sort(l.ids)
	l.ids = slices.Compact(l.ids)
	return l, nil
}

// identify names the licences of a text.
func identify(data []byte) []string {
	coverage := licensecheck.Scan(data)
	if coverage.Percent < known {
		return nil
	}
	var ids []string
	for _, match := range coverage.Match {
		if !match.IsURL {
			ids = append(ids, match.ID)
		}
	}
	return ids
}

// choice returns the SPDX expression of a module that may be used under one licence or another, else "". Its texts hold
// both, and only its own words, which no program understands, say "or".
func choice(module string) string {
	switch module {
	case "kernel.org/pub/linux/libs/security/libcap/cap", "kernel.org/pub/linux/libs/security/libcap/psx":
		return "BSD-3-Clause OR GPL-2.0-only"
	}
	return ""
}
