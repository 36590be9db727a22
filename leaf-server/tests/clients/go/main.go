package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/redis/go-redis/v9"
)

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func main() {
	increments := must(strconv.Atoi(os.Args[2]))
	flakes := must(strconv.Atoi(os.Args[3]))
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	out := bufio.NewWriter(os.Stdout)
	for range increments / 100 {
		pipe := client.Pipeline()
		for range 100 {
			pipe.Incr(ctx, "leaf-segment-test")
		}
		for _, command := range must(pipe.Exec(ctx)) {
			fmt.Fprintln(out, command.(*redis.IntCmd).Val())
		}
	}
	for range flakes / 100 {
		for _, id := range must(client.Do(ctx, "SNOWFLAKE", "COUNT", 100).StringSlice()) {
			fmt.Fprintln(out, id)
		}
	}
	must(0, out.Flush())
	must(0, client.Close())
}
