// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nodecache/node-cache/pkg/status"
)

// topView is what `node-cache top` shows.
type topView struct {
	flags    adminFlags
	by, sort string
	interval time.Duration
	number   int

	before, after topPage
}

// A topPage is the page /top and when it was read.
type topPage struct {
	status.Top
	at time.Time
}

func topCommand() *cobra.Command {
	v := &topView{}
	cmd := &cobra.Command{
		Use:   "top [--by pod|workload|namespace|name] [--sort COLUMN] [-n NUMBER] [--interval TIME]",
		Short: "Show which pods of the node ask how much",
		Long: `Show which pods of the node ask how much. On a terminal the table is renewed until q is
pressed; p, w and n group by pod, workload and namespace, d shows domain names, and s sorts
by the next column.
Elsewhere one table is printed, of one interval. With -o json: the counts since the agent
knows each pod. The agent needs pods.identity.

SEARCH is the share of queries whose name does not exist and ends in the cluster domain:
names that a client tries by its search list. Set ndots: 2 in the pod's dnsConfig.
LATENCY is the average time to the reply, in which answers from memory count as 0.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !slices.Contains(topGroups(), v.by):
				return &usageError{fmt.Errorf("--by %q: not one of %s", v.by, strings.Join(topGroups(), ", "))}
			case !slices.Contains(topColumns(), v.sort):
				return &usageError{fmt.Errorf("--sort %q: not one of %s", v.sort, strings.Join(topColumns(), ", "))}
			case v.number < 1 || v.number > 1000:
				return &usageError{fmt.Errorf("-n %d: not from 1 to 1000", v.number)}
			case v.interval < 100*time.Millisecond:
				return &usageError{fmt.Errorf("--interval %s: less than 100ms", v.interval)}
			}
			return v.run(cmd)
		},
	}
	v.flags.add(cmd)
	cmd.Flags().StringVar(&v.by, "by", "pod", "`GROUP` of a row: pod, workload, namespace or name")
	cmd.Flags().StringVar(&v.sort, "sort", "queries", "`COLUMN` to sort by: "+strings.Join(topColumns(), ", "))
	cmd.Flags().IntVarP(&v.number, "number", "n", 20, "number of rows, at most 1000")
	cmd.Flags().DurationVar(&v.interval, "interval", 2*time.Second, "`TIME` that the rates are of")
	for name, values := range map[string][]string{"by": topGroups(), "sort": topColumns()} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	return cmd
}

func topGroups() []string { return []string{"pod", "workload", "namespace", "name"} }
func topColumns() []string {
	return []string{"queries", "upstream", "nxdomain", "search", "failed", "shed", "latency", "bytes"}
}

// run shows the table in the way that the output allows.
func (v *topView) run(cmd *cobra.Command) error {
	out, isFile := cmd.OutOrStdout().(*os.File)
	live := isFile && term.IsTerminal(int(out.Fd())) && term.IsTerminal(int(os.Stdin.Fd()))
	if v.flags.output == "json" || !live {
		return v.once(cmd)
	}
	if err := v.read(cmd.Context()); err != nil {
		return err
	}
	state, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return fmt.Errorf("reading keys: %w", err)
	}
	defer func() { _ = term.Restore(int(os.Stdin.Fd()), state) }()
	return v.live(cmd.Context(), out, keysOf(os.Stdin))
}

// once prints the counts as JSON, or one table.
func (v *topView) once(cmd *cobra.Command) error {
	if v.flags.output == "json" {
		return v.flags.show(cmd, http.MethodGet, "/top", v.parameters(), &v.after, nil)
	}
	if err := v.read(cmd.Context()); err != nil {
		return err
	}
	select {
	case <-time.After(v.interval):
	case <-cmd.Context().Done():
		return cmd.Context().Err()
	}
	if err := v.read(cmd.Context()); err != nil {
		return err
	}
	_, err := io.WriteString(cmd.OutOrStdout(), v.table(v.number))
	return err
}

// keysOf passes on the keys that are pressed. It ends with the program.
func keysOf(in io.Reader) <-chan byte {
	keys := make(chan byte)
	go func() {
		defer close(keys)
		var key [1]byte
		for {
			if _, err := in.Read(key[:]); err != nil {
				return
			}
			keys <- key[0]
		}
	}()
	return keys
}

// live renews the table until q or Ctrl-C is pressed.
func (v *topView) live(ctx context.Context, out *os.File, keys <-chan byte) error {
	tick := time.NewTicker(v.interval)
	defer tick.Stop()
	for {
		rows := v.number
		if _, height, err := term.GetSize(int(out.Fd())); err == nil {
			rows = min(rows, max(1, height-4))
		}
		text := "\x1b[H\x1b[2J" + strings.ReplaceAll(v.table(rows)+"\nq quit   p pod   w workload   n namespace   d domain name   s sort", "\n", "\r\n")
		if _, err := io.WriteString(out, text); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := v.read(ctx); err != nil {
				return err
			}
		case key, open := <-keys:
			const interrupt = 3 // Ctrl-C of a terminal in raw mode
			if !open || key == 'q' || key == interrupt {
				_, err := io.WriteString(out, "\r\n")
				return err
			}
			v.press(key)
		}
	}
}

// press changes what the table shows.
func (v *topView) press(key byte) {
	switch key {
	case 'p', 'w', 'n', 'd':
		v.by = topGroups()[strings.IndexByte("pwnd", key)]
	case 's':
		columns := topColumns()
		v.sort = columns[(slices.Index(columns, v.sort)+1)%len(columns)]
	}
}

// read reads the page once more.
func (v *topView) read(ctx context.Context) error {
	page, err := v.flags.page(ctx, http.MethodGet, "/top", v.parameters())
	if err != nil {
		return err
	}
	next := topPage{at: time.Now()}
	if err := json.Unmarshal(page, &next.Top); err != nil {
		return fmt.Errorf("reading /top of the agent at %s: %w", v.flags.admin, err)
	}
	v.before, v.after = v.after, next
	return nil
}

// parameters are those of /top.
func (v *topView) parameters() url.Values {
	if v.by == "name" {
		return url.Values{"by": {"name"}}
	}
	return nil
}

// unknownRow is the name of the clients without a pod: of the host network, and those that start or end.
const unknownRow = "(no pod)"

// A topLine is a row of the table: what its group asked between two pages, by topColumns.
type topLine struct {
	name   string
	counts [8]float64 // of latency: microseconds in all
}

// value returns what rows are sorted by in a column.
func (l *topLine) value(column int) float64 {
	if topColumns()[column] == "latency" {
		return l.counts[column] / max(1, l.counts[0])
	}
	return l.counts[column]
}

// lines returns the rows, the largest first.
func (v *topView) lines() []topLine {
	before := map[string]*status.TopCounts{}
	for _, item := range v.items(&v.before.Top) {
		before[item.key] = item.counts
	}
	sums := map[string]*topLine{}
	for _, item := range v.items(&v.after.Top) {
		if sums[item.group] == nil {
			sums[item.group] = &topLine{name: item.group}
		}
		sums[item.group].add(item.counts, 1)
		if old := before[item.key]; old != nil && old.Queries <= item.counts.Queries { // else it is counted anew
			sums[item.group].add(old, -1)
		}
	}
	column := slices.Index(topColumns(), v.sort)
	list := make([]topLine, 0, len(sums))
	for _, line := range sums {
		list = append(list, *line)
	}
	slices.SortFunc(list, func(a, b topLine) int {
		return cmp.Or(cmp.Compare(b.value(column), a.value(column)), cmp.Compare(b.counts[0], a.counts[0]), cmp.Compare(a.name, b.name))
	})
	return list
}

// A topItem is what is counted on a page, and the row that it belongs to.
type topItem struct {
	key, group string
	counts     *status.TopCounts
}

// items returns what the page counts of the names, or of the pods and the clients without one.
func (v *topView) items(t *status.Top) []topItem {
	list := make([]topItem, 0, len(t.Names)+len(t.Pods)+1)
	if v.by == "name" {
		for i := range t.Names {
			list = append(list, topItem{t.Names[i].Name, t.Names[i].Name, &t.Names[i].TopCounts})
		}
		return list
	}
	for i := range t.Pods {
		r := &t.Pods[i]
		list = append(list, topItem{r.Namespace + "/" + r.Pod, v.groupOf(r), &r.TopCounts})
	}
	return append(list, topItem{unknownRow, unknownRow, &t.Unknown})
}

func (l *topLine) add(c *status.TopCounts, sign float64) {
	for i, n := range []uint64{c.Queries, c.Upstream, c.NXDomain, c.Search, c.Failed, c.Shed, c.WaitedUS, c.Bytes} {
		l.counts[i] += sign * float64(n)
	}
}

// groupOf returns the row of a pod.
func (v *topView) groupOf(r *status.TopRow) string {
	switch {
	case v.by == "namespace":
		return r.Namespace
	case v.by == "workload" && r.Workload != "":
		return r.Namespace + "/" + r.Workload
	default:
		return r.Namespace + "/" + r.Pod
	}
}

// table formats the largest rows.
func (v *topView) table(rows int) string {
	var b strings.Builder
	if v.before.at.IsZero() || v.by == "name" && v.before.Names == nil {
		return fmt.Sprintf("counting for %s\n", v.interval)
	}
	elapsed := v.after.at.Sub(v.before.at).Seconds()
	if v.after.Stale {
		b.WriteString("The API server has not confirmed the pods recently.\n")
	}
	b.WriteString("QUERIES/S  UPSTREAM  NXDOMAIN  SEARCH  FAILED   SHED   LATENCY   BYTES/S  " + strings.ToUpper(v.by) + "\n")
	list := v.lines()
	for i := range list[:min(rows, len(list))] {
		line := &list[i]
		_, _ = fmt.Fprintf(&b, "%9.1f", line.counts[0]/elapsed)
		for i, width := range []int{6, 6, 4, 4, 3} {
			_, _ = fmt.Fprintf(&b, "  %*.0f %%", width, 100*line.counts[i+1]/max(1, line.counts[0]))
		}
		_, _ = fmt.Fprintf(&b, "  %5.1f ms  %8.0f  %s\n", line.value(6)/1000, line.counts[7]/elapsed, line.name)
	}
	return b.String()
}
