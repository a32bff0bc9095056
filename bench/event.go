// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	eventNamespace = "bench-events"
	askEvery       = 10 * time.Millisecond // 100 queries a second for one name
	eventTimeout   = 30 * time.Second
	more           = 5 // answers seen before and after each change
)

// denied stands for NXDOMAIN among answers, which are addresses otherwise.
const denied = "NXDOMAIN"

// events is what came of services that were created and deleted one after another.
type events struct {
	latencies []time.Duration // from the answer of the API server to the first right answer
	older     int             // answers that were older than one asked for before
	wrong     int             // answers that were right at no time
	lost      int             // queries without an answer
}

// measureEvents asks a server for services that come and go.
func (b *clusterBench) measureEvents(ctx context.Context, row *clusterResult, port int) error {
	row.events = new(events)
	for i := range b.opts.events {
		if err := b.event(ctx, row.events, fmt.Sprintf("event-%d", i), port); err != nil {
			return fmt.Errorf("event %d: %w", i+1, err)
		}
	}
	e := row.events
	printf(b.progress, "%-26s %d events: p50 %s, p99 %s, max %s; older %d, wrong %d, lost %d\n", row.Name, len(e.latencies),
		e.quantile(0.5), e.quantile(0.99), e.quantile(1), e.older, e.wrong, e.lost)
	return nil
}

// event creates a service and deletes it again, while its name is asked for.
func (b *clusterBench) event(ctx context.Context, e *events, name string, port int) error {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	w, err := startNameWatcher(ctx, name+"."+eventNamespace+".svc."+domain+".", port)
	if err != nil {
		return err
	}
	defer w.stop()
	if err := w.until(ctx, 0, denied); err != nil {
		return fmt.Errorf("before its creation: %w", err)
	}
	// At any moment between two questions, not right after one.
	if err := retry.Sleep(ctx, rand.N(askEvery)); err != nil {
		return err
	}
	services := b.cluster.Client().CoreV1().Services(eventNamespace)
	made, err := services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating it: %w", err)
	}
	created, mark := time.Now(), w.asked()
	if err := w.until(ctx, mark, made.Spec.ClusterIP); err != nil {
		return fmt.Errorf("after its creation: %w", err)
	}
	deleting, mark := time.Now(), w.asked()
	if err := services.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting it: %w", err)
	}
	if err := w.until(ctx, mark, denied); err != nil {
		return fmt.Errorf("after its deletion: %w", err)
	}
	w.stop()
	e.add(w.answers, made.Spec.ClusterIP, created, deleting)
	return nil
}

// add judges the answers of one event: denials, then the address, and denials again once the deletion began. Answers
// to questions that were under way at the same time may come in any order: one is older only if its question was
// asked after a newer answer had arrived.
func (e *events) add(answers []answer, address string, created, deleting time.Time) {
	there := earliest(answers, func(a answer) bool { return a.text == address })
	gone := earliest(answers, func(a answer) bool { return a.text == denied && a.asked.After(there) && a.arrived.After(deleting) })
	for _, a := range answers {
		switch a.text {
		case "":
			e.lost++
		case address:
			if !gone.IsZero() && a.asked.After(gone) {
				e.older++
			}
		case denied:
			if a.asked.After(there) && a.arrived.Before(deleting) {
				e.older++
			}
		default:
			e.wrong++
		}
	}
	e.latencies = append(e.latencies, max(0, there.Sub(created)))
}

// earliest is when the first of the answers that are so arrived, zero if none is.
func earliest(answers []answer, is func(answer) bool) time.Time {
	var first time.Time
	for _, a := range answers {
		if is(a) && (first.IsZero() || a.arrived.Before(first)) {
			first = a.arrived
		}
	}
	return first
}

// quantile is the latency that the share q of the events did not exceed.
func (e *events) quantile(q float64) time.Duration {
	if len(e.latencies) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(e.latencies))
	i := int(q*float64(len(sorted))+0.999999) - 1 // the nearest rank, rounded up
	return sorted[min(max(i, 0), len(sorted)-1)].Round(100 * time.Microsecond)
}

// An answer is what a query got; an empty text is nothing yet.
type answer struct {
	text           string
	asked, arrived time.Time
}

// A nameWatcher asks for one name repeatedly and keeps the answers in the order of the questions.
type nameWatcher struct {
	conn   net.Conn
	name   string
	ticker *time.Ticker
	tasks  sync.WaitGroup
	end    context.CancelFunc

	mu      sync.Mutex // guards answers until stop
	answers []answer
	changed chan struct{} // has an item after an answer
}

// startNameWatcher begins to ask; stop ends it.
func startNameWatcher(ctx context.Context, name string, port int) (*nameWatcher, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp4", loopback+":"+strconv.Itoa(port))
	if err != nil {
		return nil, fmt.Errorf("dialing: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &nameWatcher{conn: conn, name: name, end: cancel, ticker: time.NewTicker(askEvery), changed: make(chan struct{}, 1)}
	w.tasks.Go(func() { w.ask(ctx) })
	w.tasks.Go(w.listen)
	return w, nil
}

// stop ends the questions and gives the last answers a moment.
func (w *nameWatcher) stop() {
	w.end()
	w.ticker.Stop()
	_ = w.conn.SetReadDeadline(time.Now().Add(20 * askEvery)) // closed: nothing is read any more
	w.tasks.Wait()
	_ = w.conn.Close()
}

func (w *nameWatcher) ask(ctx context.Context) {
	for {
		w.mu.Lock()
		id := len(w.answers)
		w.answers = append(w.answers, answer{asked: time.Now()})
		w.mu.Unlock()
		m := new(dns.Msg).SetQuestion(w.name, dns.TypeA)
		m.Id = uint16(id) // 65536 questions take longer than an event may
		if text, err := m.Pack(); err == nil {
			_, _ = w.conn.Write(text) // one that is not sent is lost
		}
		select {
		case <-ctx.Done():
			return
		case <-w.ticker.C:
		}
	}
}

func (w *nameWatcher) listen() {
	buf := make([]byte, 4096)
	for {
		n, err := w.conn.Read(buf)
		if errors.Is(err, net.ErrClosed) || isTimeout(err) {
			return
		}
		now := time.Now()
		m := new(dns.Msg)
		if err != nil || m.Unpack(buf[:n]) != nil {
			continue
		}
		w.mu.Lock()
		if int(m.Id) < len(w.answers) {
			w.answers[m.Id].text, w.answers[m.Id].arrived = textOf(m), now
		}
		w.mu.Unlock()
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// textOf is the first address of a reply, or its response code.
func textOf(m *dns.Msg) string {
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			return a.A.String()
		}
	}
	return dns.RcodeToString[m.Rcode]
}

// asked is how many questions there were.
func (w *nameWatcher) asked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.answers)
}

// until waits for some answers with the text among those of questions after the mark.
func (w *nameWatcher) until(ctx context.Context, mark int, text string) error {
	for {
		w.mu.Lock()
		n, last := 0, ""
		for _, a := range w.answers[mark:] {
			if a.text == text {
				n++
			}
			if a.text != "" {
				last = a.text
			}
		}
		w.mu.Unlock()
		if n >= more {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("asking for %s: no answer %s, the last was %q: %w", w.name, text, last, ctx.Err())
		case <-w.changed:
		}
	}
}
