// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// startBrowser runs Chromium without a window until the test ends.
func startBrowser(t *testing.T) context.Context {
	t.Helper()
	program := proctest.FindProgram(t, "chromium", "chromium")
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()))
	ctx, cancel := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	assert.NoError(t, chromedp.Do(ctx))
	return ctx
}

// A tab shows the page.
type tab struct {
	*testing.T

	ctx context.Context //nolint:containedctx // it is the tab

	mu       sync.Mutex         // guards the fields below
	console  []string           // errors and other messages
	requests []string           // to other servers
	bytes    map[string]float64 // of the first reply of each path
}

// openTab opens a URL in a new tab with a width in CSS pixels and a colour scheme.
func openTab(browser context.Context, t *testing.T, url string, width int64, scheme string, noScript bool) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	p := &tab{T: t, ctx: ctx, bytes: map[string]float64{}}
	root, _, _ := strings.Cut(url, "?")
	paths := map[network.RequestID]string{}
	assert.NoError(t, chromedp.Listen(ctx, func(event any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			p.console = append(p.console, e.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			p.console = append(p.console, string(e.Type))
		case *log.EventEntryAdded:
			p.console = append(p.console, e.Entry.Text)
		case *network.EventRequestWillBeSent:
			path, own := strings.CutPrefix(e.Request.URL, root)
			path, _, _ = strings.Cut(path, "?") // the token
			if !own && e.Request.URL != "data:," {
				p.requests = append(p.requests, e.Request.URL)
			}
			paths[e.RequestID] = path
		case *network.EventLoadingFinished:
			if path := paths[e.RequestID]; p.bytes[path] == 0 {
				p.bytes[path] = e.EncodedDataLength
			}
		}
	}))
	command(p, network.Enable, network.EnableParams{})
	command(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 800, DeviceScaleFactor: 1})
	command(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	command(p, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: noScript})
	run(p, chromedp.Navigate(url))
	return p
}

// run runs an action in the tab.
func run[T any](p *tab, action chromedp.Action[T]) T {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	assert.NoError(p.T, err)
	return value
}

// command sends a command to the tab.
func command[P, R any](p *tab, command cdp.Command[P, R], parameters P) R {
	p.Helper()
	return run(p, func(ctx context.Context, target *chromedp.Target) (R, error) {
		return cdp.Call(ctx, target, command, parameters)
	})
}

// text returns what a reader sees of an element, "" without one.
func (p *tab) text(selector string) string {
	p.Helper()
	return run(p, chromedp.Evaluate[string](fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector)))
}

// await waits until an element shows what is wanted, and returns how long that took.
func (p *tab) await(selector, wanted string) time.Duration {
	p.Helper()
	var text string
	return proctest.Eventually(p.T, time.Minute, fmt.Sprintf("%s shows %q", selector, wanted), func() bool {
		text = p.text(selector)
		return strings.Contains(text, wanted)
	}, func() string { return text })
}

// checkLayout looks for overflow, and for text with too little contrast: WCAG 2.1 wants 4.5.
func (p *tab) checkLayout() {
	p.Helper()
	if overflow := run(p, chromedp.Evaluate[int]("document.documentElement.scrollWidth - innerWidth")); overflow > 0 {
		p.Errorf("the page is %d pixels wider than the window", overflow)
	}
	if pale := run(p, chromedp.Evaluate[[]string](contrast)); len(pale) > 0 {
		p.Errorf("too little contrast: %q", pale)
	}
}

// contrast lists the texts and lines whose colour has a contrast below 4.5 to the one behind them, and how many were compared if
// that is too few.
const contrast = `(() => {
  const rgb = (text) => text.match(/[\d.]+/g).map(Number);
  const light = (color) => [0.2126, 0.7152, 0.0722].reduce((sum, share, i) => {
    const c = color[i] / 255;
    return sum + share * (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  }, 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const color = rgb(getComputedStyle(e).backgroundColor);
      if (color[3] !== 0) return color;
    }
    return [255, 255, 255];
  };
  const pale = [];
  let compared = 0;
  for (const e of document.querySelectorAll("body *")) {
    const shown = [...e.childNodes].some((n) => n.nodeType == Node.TEXT_NODE && n.data.trim());
    if (!e.getClientRects().length || !(shown || e.matches("path")) || e.matches("title")) continue;
    const style = getComputedStyle(e);
    const colour = e.matches("path") ? style.stroke : e.matches("svg text") ? style.fill : style.color;
    const [a, b] = [light(rgb(colour)), light(behind(e))];
    compared++;
    if ((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5) pale.push(e.outerHTML.slice(0, 80) + " " + colour);
  }
  return compared < 30 ? [compared + " compared"] : pale;
})()`

// checkTree looks in the accessibility tree for what a screen reader needs: names of images, regions, links and buttons, and cells
// with headers.
func (p *tab) checkTree() {
	p.Helper()
	bare := run(p, chromedp.Evaluate[[]string](`[...document.querySelectorAll("table")].filter((t) => !t.tHead || t.querySelector("thead th:not([scope=col])")
  || [...t.tBodies[0].rows].some((r) => r.closest("main") && !r.querySelector("th[scope=row]"))).map((t) => t.outerHTML.slice(0, 80))
  .concat(document.documentElement.lang == "en" && document.title ? [] : ["no language or title"])`))
	if len(bare) > 0 {
		p.Errorf("tables without headers: %q", bare)
	}
	count := map[string]int{}
	for _, n := range command(p, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		role := ""
		if n.Role != nil {
			role = strings.Trim(string(n.Role.Value), `"`)
		}
		if n.Ignored || !slices.Contains([]string{"image", "img", "region", "link", "button", "navigation", "main"}, role) {
			continue
		}
		count[role]++
		if role != "main" && (n.Name == nil || string(n.Name.Value) == `""`) {
			p.Errorf("a %s has no name", role)
		}
	}
	if count["image"]+count["img"] != 4 || count["main"] != 1 || count["navigation"] != 1 || count["region"] < 6 || count["link"] < 5 {
		p.Errorf("the accessibility tree has %v", count)
	}
}

// checkQuiet expects no message on the console, and no request to another server.
func (p *tab) checkQuiet() {
	p.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.console)+len(p.requests) > 0 {
		p.Errorf("console %q, requests to others %q", p.console, p.requests)
	}
}

// screenshot writes the window as a file of docs with -update, and expects it there otherwise.
func (p *tab) screenshot(file string) {
	p.Helper()
	path := filepath.Join("../../docs", file)
	if assert.Updating() {
		shot := command(p, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatWebp, Quality: new(int64(70))})
		assert.NoError(p.T, os.WriteFile(path, shot.Data, 0o644))
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 80<<10 {
		p.Errorf("%s: %v, want a file of at most 80 KiB", path, err)
	}
}
