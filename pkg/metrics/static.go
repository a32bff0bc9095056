// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/nodecache/node-cache/pkg/static"
)

// staticFamilies describe the answers from the configuration.
func staticFamilies() []family {
	file := []label{{name: "file"}}
	return []family{
		{
			"static_names", gauge, "Names in hosts. Absent without hosts and templates, like all static metrics.",
			nil, readStatic(func(t *static.Stats, out *sink) { out.put(float64(t.Names)) }),
		},
		{
			"static_addresses", gauge, "Addresses of those names. An address counts once for each name.",
			nil, readStatic(func(t *static.Stats, out *sink) { out.put(float64(t.Addresses)) }),
		},
		{
			"static_templates", gauge, "Templates configured.",
			nil, readStatic(func(t *static.Stats, out *sink) { out.put(float64(t.Templates)) }),
		},
		{
			"static_template_failures_total", counter, "Queries that a template failed to answer; they got SERVFAIL.",
			nil, readStatic(func(t *static.Stats, out *sink) { out.count(t.Failures) }),
		},
		{
			"static_file_names", gauge, "Names read from a hosts file.",
			file, readHosts(func(f *static.FileStats) float64 { return float64(f.Names) }),
		},
		{
			"static_file_skipped_lines", gauge, "Invalid lines of a hosts file.",
			file, readHosts(func(f *static.FileStats) float64 { return float64(f.Skipped) }),
		},
		{
			"static_file_reads_total", counter, "Versions of a hosts file loaded.",
			file, readHosts(func(f *static.FileStats) float64 { return float64(f.Reads) }),
		},
		{
			"static_file_readable", gauge, "1 if the last read of the hosts file succeeded, else 0: the previous content is served. /status shows the reason.",
			file, readHosts(func(f *static.FileStats) float64 { return boolValue(f.Err == nil) }),
		},
	}
}

// readStatic reads a family of static answers. It has no series without hosts and templates.
func readStatic(read func(*static.Stats, *sink)) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		if s.static != nil {
			read(s.static, out)
		}
	}
}

// readHosts reads a family with a series for each hosts file.
func readHosts(of func(*static.FileStats) float64) func(*sample, *sink) {
	return readStatic(func(t *static.Stats, out *sink) {
		for i := range t.Files {
			out.put(of(&t.Files[i]), t.Files[i].Path)
		}
	})
}
