// Elections beside each other, on servers of this machine: rlock, etcd's concurrency.Election, and client-go's
// leaderelection on a record in etcd, as it is in Kubernetes. 100 campaign and 100 observe.
//
//	elections REDIS ETCD              measures, and prints a table
//	elections measure KIND ADDRESS    measures one of them, and prints its row
//	elections lead KIND ADDRESS       leads until it is killed; for the last column
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	candidates = 100
	observers  = 100
	rounds     = 20
	kills      = 3
	quiet      = 20 * time.Second
	// The lease of rlock and the TTL of etcd's sessions. client-go has its defaults: 15 s, and retries every 2 s.
	lease = 10 * time.Second
)

// A way to elect. A candidate is made for each who campaigns, with a connection of its own.
type kind struct {
	name      string
	rounds    int
	candidate func(address, name string) candidate
	// Calls told with each value, from the leader of now on.
	observe  func(ctx context.Context, address string, told func(value string))
	requests func(address string) int
	isEtcd   bool
}

type candidate interface {
	// Returns when it leads, and has published its name.
	campaign(ctx context.Context)
	resign()
}

// What is elected for: another one in each part, as what an earlier part has begun may go on.
var election string

var kinds = []kind{rlockKind("rlock", nil), etcdKind(), clientGoKind(), rlockKind("rlock, BIND 0", []any{"BIND", 0})}

func main() {
	switch arguments := os.Args[1:]; {
	case len(arguments) == 3 && arguments[0] == "lead":
		it := kindOf(arguments[1])
		election = "killed-" + it.name
		it.candidate(arguments[2], "killed").campaign(context.Background())
		fmt.Println("leads")
		select {}
	case len(arguments) == 3 && arguments[0] == "measure":
		it, address := kindOf(arguments[1]), arguments[2]
		leads, median, last, idle := it.measure(address)
		killed := it.kill(address)
		fmt.Printf("| %s | %s | %s; %s | %.1f | %s |\n", it.name, shown(leads), shown(median), shown(last), idle, shown(killed))
	case len(arguments) == 2:
		fmt.Println("| | resign → the next one knows | → 100 observers know, median; last | requests a second, all quiet | kill -9 → the next one leads |")
		fmt.Println("|---|---|---|---|---|")
		for _, it := range kinds {
			address := arguments[0]
			if it.isEtcd {
				address = arguments[1]
			}
			// In a process of its own, so that nothing of it goes on beside the next one.
			part := exec.Command(os.Args[0], "measure", it.name, address)
			part.Stdout, part.Stderr = os.Stdout, os.Stderr
			check(part.Run())
		}
	default:
		log.Fatal("usage: elections REDIS-ADDRESS ETCD-ADDRESS")
	}
}

func kindOf(name string) kind {
	return kinds[slices.IndexFunc(kinds, func(it kind) bool { return it.name == name })]
}

// Medians over all rounds.
func (k kind) measure(address string) (leads, median, last time.Duration, idle float64) {
	election = "measured-" + k.name
	ctx, end := context.WithCancel(context.Background())
	defer end()
	var mutex sync.Mutex
	knew := map[string][]time.Time{}
	for range observers {
		go k.observe(ctx, address, func(value string) {
			now := time.Now()
			mutex.Lock()
			defer mutex.Unlock()
			knew[value] = append(knew[value], now)
		})
	}
	type granted struct {
		by   candidate
		name string
		at   time.Time
	}
	grants := make(chan granted, candidates)
	begin := func(number, round int) {
		name := fmt.Sprintf("%d-%d", number, round)
		go func() {
			it := k.candidate(address, name)
			it.campaign(ctx)
			grants <- granted{it, name, time.Now()}
		}()
	}
	for number := range candidates {
		begin(number, 0)
	}
	// Until all who campaign and observe have settled down.
	time.Sleep(5 * time.Second)
	leader := <-grants
	var toLead, toMedian, toLast []time.Duration
	for round := 1; round <= k.rounds; round++ {
		time.Sleep(300 * time.Millisecond)
		began := time.Now()
		leader.by.resign()
		leader = <-grants
		toLead = append(toLead, leader.at.Sub(began))
		var times []time.Time
		for deadline := time.Now().Add(30 * time.Second); len(times) < observers; time.Sleep(5 * time.Millisecond) {
			mutex.Lock()
			times = slices.Clone(knew[leader.name])
			mutex.Unlock()
			if time.Now().After(deadline) {
				log.Fatalf("%s: %d of %d observers know", k.name, len(times), observers)
			}
		}
		slices.SortFunc(times, time.Time.Compare)
		toMedian = append(toMedian, times[observers/2].Sub(began))
		toLast = append(toLast, times[observers-1].Sub(began))
		begin(candidates, round)
	}
	time.Sleep(time.Second)
	before := k.requests(address)
	time.Sleep(quiet)
	idle = float64(k.requests(address)-before) / quiet.Seconds()
	return middle(toLead), middle(toMedian), middle(toLast), idle
}

// A leader in a process of its own is killed, while one other candidate waits.
func (k kind) kill(address string) time.Duration {
	election = "killed-" + k.name
	var times []time.Duration
	for range kills {
		ctx, end := context.WithCancel(context.Background())
		leader := exec.Command(os.Args[0], "lead", k.name, address)
		said, err := leader.StdoutPipe()
		check(err)
		check(leader.Start())
		_, err = bufio.NewReader(said).ReadString('\n')
		check(err)
		next, leads := k.candidate(address, "next"), make(chan time.Time, 1)
		go func() {
			next.campaign(ctx)
			leads <- time.Now()
		}()
		time.Sleep(2 * time.Second)
		began := time.Now()
		check(leader.Process.Kill())
		times = append(times, (<-leads).Sub(began))
		_ = leader.Wait()
		next.resign()
		end()
	}
	return middle(times)
}

func middle(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

func shown(it time.Duration) string {
	if it < time.Second {
		return fmt.Sprintf("%.1f ms", float64(it.Microseconds())/1000)
	}
	return fmt.Sprintf("%.1f s", it.Seconds())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// How many messages a server of etcd has received, in requests and streams.
func etcdRequests(address string) int {
	answer, err := http.Get("http://" + address + "/metrics")
	check(err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	check(err)
	sum := 0.0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "grpc_server_msg_received_total") {
			words := strings.Fields(line)
			number, err := strconv.ParseFloat(words[len(words)-1], 64)
			check(err)
			sum += number
		}
	}
	return int(sum)
}
