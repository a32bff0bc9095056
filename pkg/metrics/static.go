// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/nodecache/node-cache/pkg/static"

// staticFamilies are of the answers that are made from the configuration.
func staticFamilies() []family {
	file := []label{{name: "file"}}
	return []family{
		{
			"static_names", gauge, "Names that hosts answers. Absent without hosts and templates, like all of these.",
			nil, readStatic(func(t *static.Stats, out *sink) { out.put(float64(t.Names)) }),
		},
		{
			"static_addresses", gauge, "Addresses of those names; one that several names have counts for each.",
			nil, readStatic(func(t *static.Stats, out *sink) { out.put(float64(t.Addresses)) }),
		},
		{
			"static_templates", gauge, "Templates that answer.",
			nil, readStatic(func(t *static.Stats, out *sink) { out.put(float64(t.Templates)) }),
		},
		{
			"static_template_failures_total", counter, "Questions that a template was for and made no answer of; they got SERVFAIL.",
			nil, readStatic(func(t *static.Stats, out *sink) { out.count(t.Failures) }),
		},
		{
			"static_file_names", gauge, "Names read from a file of hosts.",
			file, readHosts(func(f *static.FileStats) float64 { return float64(f.Names) }),
		},
		{
			"static_file_skipped_lines", gauge, "Lines of it that could not be used.",
			file, readHosts(func(f *static.FileStats) float64 { return float64(f.Skipped) }),
		},
		{
			"static_file_reads_total", counter, "Times that new contents of it were put to work.",
			file, readHosts(func(f *static.FileStats) float64 { return float64(f.Reads) }),
		},
		{
			"static_file_readable", gauge, "1 if it could be read when it was last tried, else 0: what was read before is answered. /status has the reason.",
			file, readHosts(func(f *static.FileStats) float64 { return truth(f.Err == nil) }),
		},
	}
}

// readStatic reads a family of answers from the configuration, which has no series
// without any.
func readStatic(read func(*static.Stats, *sink)) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		if s.static != nil {
			read(s.static, out)
		}
	}
}

// readHosts reads a family with a series for each file of hosts.
func readHosts(of func(*static.FileStats) float64) func(*sample, *sink) {
	return readStatic(func(t *static.Stats, out *sink) {
		for i := range t.Files {
			out.put(of(&t.Files[i]), t.Files[i].Path)
		}
	})
}
