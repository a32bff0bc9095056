// SPDX-License-Identifier: Apache-2.0

package metrics

// A Row is a family of the table for tests.
type Row struct {
	Name, Kind, Help string
	Labels           []Column
}

// A Column is a label of a Row.
type Column struct {
	Name   string
	Values []string // nil: an open set
}

// A Chapter is a section of the table.
type Chapter struct {
	Title string
	Rows  []Row
}

// Chapters is the table.
func Chapters() []Chapter {
	var list []Chapter
	for _, f := range families() {
		if len(list) == 0 || list[len(list)-1].Title != f.section {
			list = append(list, Chapter{Title: f.section})
		}
		r := Row{Name: prefix + f.name, Kind: string(f.kind), Help: f.help}
		for _, l := range f.labels {
			r.Labels = append(r.Labels, Column{Name: l.name, Values: l.values})
		}
		c := &list[len(list)-1]
		c.Rows = append(c.Rows, r)
	}
	return list
}
