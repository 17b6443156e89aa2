"""Header type of each request, without requests that have no header or that no broker supports."""

from __future__ import annotations

from escrowmq.protocol.remoting import admin_headers as admin
from escrowmq.protocol.remoting import consumer_headers as consumer
from escrowmq.protocol.remoting import send_headers as send
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.headers import Header

REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.SEND_MESSAGE: send.LongSendHeader,
    RequestCode.SEND_MESSAGE_V2: send.SendHeader,
    RequestCode.SEND_BATCH_MESSAGE: send.SendHeader,
    RequestCode.END_TRANSACTION: send.EndTransactionHeader,
    RequestCode.CHECK_TRANSACTION_STATE: send.CheckTransactionHeader,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: send.ResumeCheckHeader,
    RequestCode.PULL_MESSAGE: consumer.PullHeader,
    RequestCode.LITE_PULL_MESSAGE: consumer.PullHeader,
    RequestCode.QUERY_CONSUMER_OFFSET: consumer.QueryOffsetHeader,
    RequestCode.UPDATE_CONSUMER_OFFSET: consumer.UpdateOffsetHeader,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: consumer.SearchOffsetHeader,
    RequestCode.GET_MAX_OFFSET: consumer.QueueHeader,
    RequestCode.GET_MIN_OFFSET: consumer.QueueHeader,
    RequestCode.GET_EARLIEST_MSG_STORETIME: consumer.QueueHeader,
    RequestCode.CONSUMER_SEND_MSG_BACK: consumer.SendBackHeader,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer.ConsumerGroupHeader,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: consumer.ConsumerGroupHeader,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: consumer.ConsumerGroupHeader,
    RequestCode.UNREGISTER_CLIENT: consumer.UnregisterHeader,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: admin.RouteHeader,
    RequestCode.UPDATE_AND_CREATE_TOPIC: admin.CreateTopicHeader,
    RequestCode.GET_TOPIC_CONFIG: admin.TopicHeader,
    RequestCode.GET_TOPIC_STATS_INFO: admin.TopicHeader,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: admin.TopicHeader,
    RequestCode.DELETE_TOPIC_IN_BROKER: admin.TopicHeader,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: admin.DeleteRouteHeader,
    RequestCode.GET_TOPICS_BY_CLUSTER: admin.ClusterHeader,
    RequestCode.QUERY_MESSAGE: admin.QueryMessageHeader,
    RequestCode.VIEW_MESSAGE_BY_ID: admin.ViewMessageHeader,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: admin.ProducerGroupHeader,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: admin.GroupHeader,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: admin.GroupHeader,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: admin.GroupTopicHeader,
    RequestCode.QUERY_CONSUME_TIME_SPAN: admin.GroupTopicHeader,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: admin.DeleteGroupHeader,
    RequestCode.GET_CONSUME_STATS: admin.ConsumeStatsHeader,
    RequestCode.GET_CONSUMER_RUNNING_INFO: admin.RunningInfoHeader,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: admin.ConsumeDirectlyHeader,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: admin.ResetOffsetHeader,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: admin.ResetOffsetHeader,
    RequestCode.PUT_KV_CONFIG: admin.KeyValueHeader,
    RequestCode.GET_KV_CONFIG: admin.KeyValueHeader,
    RequestCode.DELETE_KV_CONFIG: admin.KeyValueHeader,
}
