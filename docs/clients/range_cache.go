// Ids of a tag from leased ranges: most cost no request. Go 1.20 or newer, no packages.
//
//	go run range_cache.go orders 5 http://127.0.0.1:8080    # a token, if need be, in LEAF_TOKEN
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"
)

// RangeCache hands out ids; it leases the next range when half of one is used. For many goroutines.
type RangeCache struct {
	Servers   []string
	Tag       string
	Size      int64
	Client    http.Client // Give it a Timeout.
	Token     string      // Empty for servers that ask for none.
	mutex     sync.Mutex
	next, end int64
	spare     chan lease
}

type lease struct {
	Start, End int64 `json:",string"`
	err        error
}

// Next takes the next id.
func (cache *RangeCache) Next() (int64, error) {
	cache.mutex.Lock()
	defer cache.mutex.Unlock()
	if cache.spare == nil && cache.end-cache.next <= cache.Size/2 {
		cache.spare = make(chan lease, 1)
		go func(spare chan lease) { spare <- cache.fetch() }(cache.spare)
	}
	if cache.next >= cache.end {
		leased := <-cache.spare
		if leased.err != nil {
			// It may be of long ago.
			leased = cache.fetch()
		}
		cache.spare = nil
		if leased.err != nil {
			return 0, fmt.Errorf("no ids: %w", leased.err)
		}
		if leased.Start < cache.end {
			return 0, fmt.Errorf("%d was leased before: ask an operator", leased.Start)
		}
		cache.next, cache.end = leased.Start, leased.End
	}
	cache.next++
	return cache.next - 1, nil
}

// BeginAnew drops what was leased. For a process that goes on from a snapshot, before it takes an id.
func (cache *RangeCache) BeginAnew() {
	cache.mutex.Lock()
	defer cache.mutex.Unlock()
	cache.next, cache.end, cache.spare = 0, 0, nil
}

func (cache *RangeCache) fetch() lease {
	err := fmt.Errorf("no servers")
	for _, server := range cache.Servers {
		place := fmt.Sprintf("%s/v1/segments/%s/lease?count=%d", server, url.PathEscape(cache.Tag), cache.Size)
		request, failure := http.NewRequest("POST", place, nil)
		if failure != nil {
			return lease{err: failure}
		}
		if cache.Token != "" {
			request.Header.Set("Authorization", "Bearer "+cache.Token)
		}
		answer, failure := cache.Client.Do(request)
		if failure != nil {
			err = failure
			continue
		}
		var leased lease
		failure = json.NewDecoder(answer.Body).Decode(&leased)
		answer.Body.Close()
		if failure == nil && answer.StatusCode == http.StatusOK && leased.End-leased.Start == cache.Size {
			return leased
		}
		err = fmt.Errorf("%s: %s", server, answer.Status)
	}
	return lease{err: err}
}

func main() {
	count, _ := strconv.Atoi(os.Args[2])
	client := http.Client{Timeout: time.Second}
	ids := RangeCache{Servers: os.Args[3:], Tag: os.Args[1], Size: 1000, Client: client, Token: os.Getenv("LEAF_TOKEN")}
	for ; count > 0; count-- {
		id, err := ids.Next()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(id)
	}
}
